#include "tools/cairn/generator/answer_text.h"

#include <fmt/format.h>

#include "tools/cairn/output/units.h"

namespace cairn::cli {
namespace {

// " (46.0 MiB from shared memory, none copied)", or where the node has a GPU " (40.0 MiB from the
// node's GPU, 6.0 MiB from shared memory, none copied)". " (expired)" where nothing was fetched,
// also if bytes came that could not be used.
std::string HowFetched(const worker::GenerateSummary& summary) {
  if (summary.fetched_tokens == 0) {
    return summary.miss_reason == MissReason::kNone
               ? ""
               : fmt::format(" ({})", Name(summary.miss_reason));
  }
  const uint64_t bytes = summary.fetched.total();
  if (bytes == 0) return "";
  const uint64_t device = summary.fetched.device;
  if (summary.fetch_path == client::Path::kGrpc) {
    return fmt::format(" ({} over gRPC{})", HumanBytes(bytes),
                       device == 0 ? "" : fmt::format(", {} from a GPU", HumanBytes(device)));
  }
  if (device == bytes) return fmt::format(" ({} from the node's GPU)", HumanBytes(bytes));
  const uint64_t copied = bytes - device - summary.fetched.lent;
  return fmt::format(" ({}{} from shared memory, {} copied)",
                     device == 0 ? "" : HumanBytes(device) + " from the node's GPU, ",
                     HumanBytes(bytes - device), copied == 0 ? "none" : HumanBytes(copied));
}

// "first token 40 ms, all 1.20 s", or "cancelled before the first token, after 5.82 s".
std::string HowLong(const worker::GenerateSummary& summary) {
  const std::string early = summary.finish_reason == "cancelled"  ? "cancelled"
                            : summary.finish_reason == "deadline" ? "over its deadline"
                                                                  : "";
  const std::string all = HumanSeconds(summary.total_seconds);
  if (summary.ttft_seconds > 0) {
    return fmt::format("first token {}, {} {}", HumanSeconds(summary.ttft_seconds),
                       early.empty() ? "all" : early + " after", all);
  }
  return fmt::format("{} before the first token, after {}", early.empty() ? "ended" : early, all);
}

std::string HowRead(const worker::GenerateSummary& summary) {
  if (!summary.reading.off.empty()) return "; not read by rows: " + summary.reading.off;
  if (summary.reading.policy.empty()) return "";
  const worker::ReadCounters& counters = summary.reading.counters;
  const double hits = counters.chosen_rows == 0 ? 0
                                                : static_cast<double>(counters.hit_rows) /
                                                      static_cast<double>(counters.chosen_rows);
  return fmt::format(
      "; {} tokens read by rows: {} near, {} read, {:.0f} % of the rows hit, {} late",
      Grouped(summary.reading.far_tokens), HumanBytes(summary.reading.near_bytes),
      HumanBytes(counters.read_bytes), 100 * hits, Grouped(counters.late_rows));
}

}  // namespace

Json ToJson(const worker::GenerateSummary& summary) {
  Json json = {{"prompt_tokens", summary.prompt_tokens},
               {"fetched_tokens", summary.fetched_tokens},
               {"computed_tokens", summary.computed_tokens},
               {"shared_tokens", summary.shared_tokens},
               {"tokens", summary.tokens},
               {"text", summary.text},
               {"ttft_s", summary.ttft_seconds > 0 ? Json(summary.ttft_seconds) : Json()},
               {"total_s", summary.total_seconds},
               {"finish_reason", summary.finish_reason},
               {"miss_reason", std::string(Name(summary.miss_reason))},
               {"fetch_s", summary.fetch_seconds},
               {"fetched_bytes",
                {{"host", summary.fetched.host},
                 {"disk", summary.fetched.disk},
                 {"device", summary.fetched.device}}},
               {"lent_bytes", summary.fetched.lent},
               {"fetch_path", summary.fetched.total() == 0 ? std::string()
                                                           : std::string(Name(summary.fetch_path))},
               {"chosen_tokens", summary.chosen_tokens},
               {"selected_tokens", summary.selected_tokens},
               {"dropped_tokens", summary.dropped_tokens},
               {"turned_tokens", summary.turned_tokens},
               {"kept_share", summary.kept_share}};
  if (!summary.reading.policy.empty()) {
    const worker::ReadCounters& counters = summary.reading.counters;
    json["reading"] = {{"policy", summary.reading.policy},
                       {"far_tokens", summary.reading.far_tokens},
                       {"near_bytes", summary.reading.near_bytes},
                       {"steps", counters.steps},
                       {"chosen_rows", counters.chosen_rows},
                       {"hit_rows", counters.hit_rows},
                       {"late_rows", counters.late_rows},
                       {"useless_rows", counters.useless_rows},
                       {"lost_rows", counters.lost_rows},
                       {"read_bytes", counters.read_bytes},
                       {"index_fetched", counters.fetched_indexes > 0}};
  } else if (!summary.reading.off.empty()) {
    json["reading"] = {{"policy", ""}, {"off", summary.reading.off}};
  }
  if (summary.prompt_logits_sha256) {
    json["prompt_logits_sha256"] = summary.prompt_logits_sha256->Hex();
  }
  return json;
}

std::string AnswerLine(const worker::GenerateSummary& summary) {
  // The other end is another worker: cancelling a call to it ends its stream.
  if (summary.prompt_tokens == 0 && summary.finish_reason == "cancelled") {
    return "cancelled before the worker said what it had done";
  }
  return fmt::format("{} prompt tokens: {} fetched{}, {} computed; {}{}",
                     Grouped(summary.prompt_tokens), Grouped(summary.fetched_tokens),
                     HowFetched(summary), Grouped(summary.computed_tokens), HowLong(summary),
                     HowRead(summary));
}

bool NothingWasShared(const worker::GenerateRequest& request,
                      const worker::GenerateSummary& summary) {
  // The worker selects to the last token only what nobody shares: a shared prompt's last token is
  // computed after the selection, for its logits.
  return !request.no_cache && summary.selected_tokens > 0 &&
         summary.selected_tokens == summary.prompt_tokens;
}

}  // namespace cairn::cli
