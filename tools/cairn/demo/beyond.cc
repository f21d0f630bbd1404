// The demo's phase of a prompt whose KV is larger than the worker's memory.

#include <algorithm>
#include <utility>

#include "tools/cairn/demo/rows.h"
#include "tools/cairn/demo/runner.h"

namespace cairn::cli {
namespace {

constexpr const char* kPolicy = "precision:near=turbo3,rows=0.02,query=attention";
constexpr uint64_t kLeastArenaBytes = 1ULL << 20;  // The smallest arena of a node.
// Tokens that a worker spills at a time, at least.
constexpr uint64_t kSpilledTokens = 256;

}  // namespace

Status DemoRunner::RunBeyond() {
  CAIRN_ASSIGN_OR_RETURN(const Generator::Info info, first_->generator().GetInfo());
  CAIRN_ASSIGN_OR_RETURN(const client::NamespaceInfo stored, node_->Namespace(info.fingerprint));
  const Layout& layout = stored.spec.layout;
  const uint64_t token_bytes = BytesPerToken(layout);
  const uint32_t tokens = std::min(kBeyondTokens, info.context_tokens - 2 * kComparedTokens);
  const std::vector<model::ChatMessage> messages = {{"system", SharedText(tokens)},
                                                    {"user", texts_.questions[0]}};
  Reference full;
  {
    CAIRN_ASSIGN_OR_RETURN(auto worker, StartWorker("beyond-full", ""));
    CAIRN_RETURN_IF_ERROR(WarmUp(worker->generator()));
    progress_.Doing("beyond/full: a long prompt with all KV in pages ...");
    CAIRN_ASSIGN_OR_RETURN(const auto summary, Ask(worker->generator(), messages, false));
    full = {.answer = AnswerOf(summary), .ttft_s = summary.ttft_seconds};
    DemoRow row = RowOf("beyond/full", summary);
    row.identical = Identical(full.answer, full.answer);
    row.same_ids_as_full = SameIds(full.answer, full.answer);
    row.held = HeldOf(summary, token_bytes, summary.prompt_tokens * token_bytes);
    row.held->same_prompt = row.identical;
    rows_.push_back(row);
    Show(row, {});
  }
  DemoNode node({.disk_directory = "",
                 .log_path = options_.out_directory + "/beyond-node.log",
                 .external = ""});
  // With room for all of the prompt and some for its headers.
  CAIRN_RETURN_IF_ERROR(
      node.Start(std::max(kLeastArenaBytes, rows_.back().held->prompt_bytes * 5 / 4)));
  // A chunk, a block and the answer have room in any case, however short the context is.
  const uint64_t least = kSpilledTokens + layout.block_tokens + kComparedTokens;
  const uint64_t pool = std::max<uint64_t>(rows_.back().prompt_tokens / 5, least) /
                        layout.block_tokens * layout.block_tokens * token_bytes;
  CAIRN_ASSIGN_OR_RETURN(auto worker, StartWarmWorker("beyond-rows",
                                                      {"--kv_pool", fmt::format("{}B", pool),
                                                       "--read_policy", kPolicy},
                                                      node.address()));
  const auto held = [&](const worker::GenerateSummary& summary) {
    HeldKv rows = HeldOf(summary, token_bytes, pool);
    rows.same_prompt = summary.prompt_logits_sha256 == full.answer.prompt_logits;
    return rows;
  };
  return AskRow("beyond/rows", worker->generator(), messages, false, full, &node, nullptr, held)
      .status();
}

std::string DemoRunner::SharedText(uint32_t tokens) const {
  // cold/q1 has the text once, and says how many tokens that takes.
  const size_t bytes = texts_.shared_system.size() * tokens / rows_.front().prompt_tokens;
  std::string text = texts_.shared_system;
  while (text.size() < bytes) text += "\n" + texts_.shared_system;
  size_t end = std::min(bytes, text.size());
  // Between two characters.
  while (end > 0 && end < text.size() && (static_cast<uint8_t>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

}  // namespace cairn::cli
