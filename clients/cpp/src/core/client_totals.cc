#include "clients/cpp/src/core/client_totals.h"

#include <algorithm>

namespace cairn::client {

void AddTotals(const ClientStats& more, ClientStats* sum) {
#define CAIRN_ADD(name, ...) sum->name += more.name;
#define CAIRN_ADD_LIST(name, ...) \
  for (size_t i = 0; i < sum->name.size(); ++i) sum->name[i] += more.name[i];
  CAIRN_CLIENT_COUNTED(CAIRN_ADD)
  CAIRN_CLIENT_GATHERED(CAIRN_ADD)
  CAIRN_CLIENT_LISTS(CAIRN_ADD_LIST)
#undef CAIRN_ADD
#undef CAIRN_ADD_LIST
}

void ClientTotals::AddMatch(uint32_t matched_blocks) {
  Add(counters_.matches, 1);
  Add(counters_.matched_blocks, matched_blocks);
}

void ClientTotals::AddFetched(Path path, const FetchCounts& counts) {
  Add(counters_.fetched_slices, counts.slices);
  Add(counters_.corrupt_slices, counts.corrupt);
  Add(counters_.lent_bytes, counts.lent_bytes);
  Add(counters_.fetched_rows, counts.rows);
  Add(counters_.corrupt_rows, counts.corrupt_rows);
  for (size_t tier = 0; tier < kTierCount; ++tier) {
    Add(counters_.fetched_bytes[tier], counts.bytes[tier]);
    Add(counters_.fetched_bytes_by_path[static_cast<size_t>(path)], counts.bytes[tier]);
  }
}

void ClientTotals::AddPushed(uint64_t parts, uint64_t bytes, uint64_t near_bytes) {
  Add(counters_.pushed_parts, parts);
  Add(counters_.pushed_bytes, bytes);
  Add(counters_.pushed_bytes_by_path[static_cast<size_t>(Path::kLocal)], near_bytes);
  Add(counters_.pushed_bytes_by_path[static_cast<size_t>(Path::kGrpc)],
      bytes - std::min(bytes, near_bytes));
}

void ClientTotals::AddCall(StatusCode code) {
  const auto n = static_cast<size_t>(code);
  Add(counters_.calls_by_code[n < kCallCodeCount ? n : static_cast<size_t>(StatusCode::kUnknown)],
      1);
}

ClientStats ClientTotals::Get() const {
  ClientStats stats;
#define CAIRN_GET(name, ...) stats.name = counters_.name.load(std::memory_order_relaxed);
#define CAIRN_GET_LIST(name, ...)                                      \
  for (size_t i = 0; i < stats.name.size(); ++i) {                     \
    stats.name[i] = counters_.name[i].load(std::memory_order_relaxed); \
  }
  CAIRN_CLIENT_COUNTED(CAIRN_GET)
  CAIRN_CLIENT_LISTS(CAIRN_GET_LIST)
#undef CAIRN_GET
#undef CAIRN_GET_LIST
  return stats;
}

}  // namespace cairn::client
