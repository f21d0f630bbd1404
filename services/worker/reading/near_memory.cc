#include "services/worker/reading/near_memory.h"

#include <algorithm>
#include <cmath>

#include "common/config/config.h"
#include "services/worker/reading/row_index.h"
#include "services/worker/reading/working_set.h"

namespace cairn::worker {

Result<NearMemory> ShareBudget(const ReadPolicy& policy, const KvLayout& kv, int64_t rows,
                               uint64_t own_bytes, const NearBudget& budget) {
  NearMemory near;
  const auto heads = static_cast<uint64_t>(kv.layers) * static_cast<uint64_t>(kv.kv_heads);
  const int64_t unit = policy.unit_rows();
  const auto wanted =
      std::llround(policy.rows * static_cast<double>(rows) / static_cast<double>(unit));
  near.step_rows = std::min(rows, std::max<int64_t>(1, wanted) * unit);
  near.index_bytes = RowIndex::Bytes(policy, kv, rows);
  near.staging_bytes = static_cast<uint64_t>(kMostGathers) * static_cast<uint64_t>(kv.kv_heads) *
                       static_cast<uint64_t>(near.step_rows) * 2 * kv.row_bytes();
  near.own_bytes = own_bytes;
  const int64_t sink = std::min(policy.sink, rows);
  const auto bytes = [&](int64_t set) { return heads * WorkingSet::Bytes(set, kv.row_bytes()); };
  const int64_t least = std::min(rows, near.step_rows + sink);
  const int64_t most = std::min(
      rows,
      sink + static_cast<int64_t>(std::ceil(policy.set * static_cast<double>(near.step_rows))));
  near.set_rows = most;
  near.set_bytes = bytes(most);
  const uint64_t share = budget.share();
  if (share == 0 || near.total() <= share) return near;
  near.set_rows = least;
  near.set_bytes = bytes(least);
  if (near.total() > share) {
    // Both numbers have the same unit, so that people can compare them.
    const bool large = near.total() >= uint64_t{1} << 30;
    const auto size = [large](uint64_t n) {
      const int shift = large ? 20 : 10;
      return fmt::format("{}{}", (n + (uint64_t{1} << shift) - 1) >> shift, large ? "MiB" : "KiB");
    };
    const std::string sharing =
        budget.requests == 1
            ? ""
            : fmt::format(" for the {} requests that may run at a time", budget.requests);
    return InvalidArgument(
        "kv_budget: got {}{}, expected at least {}: a context of {} tokens needs {} with the read "
        "policy {} (copy or index {}, working set {}, rows that arrive {}, own tokens {}, which "
        "grow with max_tokens)",
        config::FormatBytes(budget.bytes), sharing,
        config::FormatBytesUp(near.total() * budget.requests), rows, size(near.total()),
        policy.ToString(), size(near.index_bytes), size(near.set_bytes), size(near.staging_bytes),
        size(near.own_bytes));
  }
  const uint64_t row = bytes(1);
  near.set_rows += static_cast<int64_t>((share - near.total()) / row);
  near.set_bytes = bytes(near.set_rows);
  return near;
}

}  // namespace cairn::worker
