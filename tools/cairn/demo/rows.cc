#include "tools/cairn/demo/rows.h"

#include <algorithm>
#include <utility>

namespace cairn::cli {

Answer AnswerOf(const worker::GenerateSummary& summary) {
  return {.tokens = {summary.tokens.begin(), summary.tokens.end()},
          .prompt_logits = summary.prompt_logits_sha256};
}

DemoRow RowOf(std::string name, const worker::GenerateSummary& summary) {
  DemoRow row;
  row.name = std::move(name);
  row.prompt_tokens = summary.prompt_tokens;
  row.fetched_tokens = summary.fetched_tokens;
  row.shared_tokens = summary.shared_tokens;
  row.computed_tokens = summary.computed_tokens;
  row.ttft_s = summary.ttft_seconds;
  if (summary.fetched.total() > 0) row.path = Name(summary.fetch_path);
  row.lent_bytes = summary.fetched.lent;
  row.copied_bytes = summary.fetched.total() - summary.fetched.lent;
  row.answer = summary.text;
  return row;
}

HeldKv HeldOf(const worker::GenerateSummary& summary, uint64_t token_bytes, uint64_t pool_bytes) {
  const auto steps = static_cast<double>(std::max<size_t>(2, summary.tokens.size()) - 1);
  return {.prompt_bytes = summary.prompt_tokens * token_bytes,
          .pool_bytes = pool_bytes,
          .near_bytes = summary.reading.near_bytes,
          .read_bytes = summary.reading.counters.read_bytes,
          .token_s = (summary.total_seconds - summary.ttft_seconds) / steps};
}

}  // namespace cairn::cli
