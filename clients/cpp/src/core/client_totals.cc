#include "clients/cpp/src/core/client_totals.h"

#include <algorithm>

namespace cairn::client {

void ClientTotals::AddMatch(uint32_t matched_blocks) {
  Add(matches_, 1);
  Add(matched_blocks_, matched_blocks);
}

void ClientTotals::AddFetched(Path path, const FetchCounts& counts) {
  Add(fetched_slices_, counts.slices);
  Add(corrupt_slices_, counts.corrupt);
  Add(lent_bytes_, counts.lent_bytes);
  Add(fetched_rows_, counts.rows);
  Add(corrupt_rows_, counts.corrupt_rows);
  for (size_t tier = 0; tier < kTierCount; ++tier) {
    Add(fetched_bytes_[tier], counts.bytes[tier]);
    Add(fetched_by_path_[static_cast<size_t>(path)], counts.bytes[tier]);
  }
}

void ClientTotals::AddPushed(uint64_t parts, uint64_t bytes, uint64_t near_bytes) {
  Add(pushed_parts_, parts);
  Add(pushed_bytes_, bytes);
  Add(pushed_near_bytes_, near_bytes);
}

void ClientTotals::AddCall(StatusCode code) {
  const auto n = static_cast<size_t>(code);
  Add(by_code_[n < by_code_.size() ? n : static_cast<size_t>(StatusCode::kUnknown)], 1);
}

ClientStats ClientTotals::Get() const {
  const auto get = [](const Counter& counter) { return counter.load(std::memory_order_relaxed); };
  ClientStats stats;
  stats.matches = get(matches_);
  stats.matched_blocks = get(matched_blocks_);
  stats.fetches = get(fetches_);
  stats.fetched_slices = get(fetched_slices_);
  stats.corrupt_slices = get(corrupt_slices_);
  stats.lent_bytes = get(lent_bytes_);
  stats.fetched_rows = get(fetched_rows_);
  stats.corrupt_rows = get(corrupt_rows_);
  stats.local_fallbacks = get(fallbacks_);
  stats.pushed_parts = get(pushed_parts_);
  stats.pushed_bytes = get(pushed_bytes_);
  for (size_t tier = 0; tier < kTierCount; ++tier)
    stats.fetched_bytes[tier] = get(fetched_bytes_[tier]);
  for (size_t path = 0; path < kPathCount; ++path)
    stats.fetched_bytes_by_path[path] = get(fetched_by_path_[path]);
  const uint64_t near_bytes = get(pushed_near_bytes_);
  stats.pushed_bytes_by_path[static_cast<size_t>(Path::kLocal)] = near_bytes;
  stats.pushed_bytes_by_path[static_cast<size_t>(Path::kGrpc)] =
      stats.pushed_bytes - std::min(stats.pushed_bytes, near_bytes);
  for (size_t code = 0; code < stats.calls_by_code.size(); ++code)
    stats.calls_by_code[code] = get(by_code_[code]);
  return stats;
}

}  // namespace cairn::client
