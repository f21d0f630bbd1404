#pragma once
// A lease remembers parts that were read from a slower tier: where their slices lie and the hashes
// of these, as the part's header says, and the hashes of the pages of slices that were compared
// whole.
//
// So later reads under the lease need no header, and a fetch of rows takes the pages with its rows
// alone. These bytes are verified all the same: the hashes are of bytes that were compared with
// their writer's hash. It is a cache. Where the memory is refused, headers and whole slices are
// read again.
//
// Thread-safe.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cairn/common/part.h"
#include "cairn/common/tier_kind.h"
#include "common/concurrency/mutex.h"
#include "services/cache/store/state/memory_account.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache {

// From a header that was checked. Immutable.
struct KnownPart {
  format::Codec codec = format::Codec::kRaw;
  std::vector<format::SliceEntry> slices;  // One per layer of the part.
};

// Pages of a slice: those of the part's extent that have bytes of it, from the part's first page.
struct SlicePages {
  static constexpr uint64_t kBytes = Tier::kRangeGrain;
  uint64_t begin = 0, end = 0;

  static SlicePages Of(const format::SliceEntry& slice) {
    return {slice.offset / kBytes, (slice.offset + slice.length + kBytes - 1) / kBytes};
  }
  uint64_t count() const { return end - begin; }
};

// The bytes of the slice in one of its pages: [first, second) of the part.
inline std::pair<uint64_t, uint64_t> InPage(const format::SliceEntry& slice, uint64_t page) {
  return {std::max(slice.offset, page * SlicePages::kBytes),
          std::min(slice.offset + slice.length, (page + 1) * SlicePages::kBytes)};
}

class KnownParts {
 public:
  // nullptr: unknown. `extent`: the part's id in the tier.
  std::shared_ptr<const KnownPart> Find(TierKind tier, uint64_t extent) const;
  void Add(TierKind tier, uint64_t extent, std::shared_ptr<const KnownPart> part,
           MemoryAccount* account);

  // The hashes of the bytes of a slice in its pages, by page. Empty: unknown. `slice`: its number
  // in the part.
  std::vector<uint64_t> PagesOf(TierKind tier, uint64_t extent, size_t slice) const;
  // `bytes`: those of the slice, which were compared with its hash. No effect if the part is
  // unknown.
  void AddPages(TierKind tier, uint64_t extent, size_t slice, std::span<const std::byte> bytes,
                MemoryAccount* account);

 private:
  using Id = std::pair<TierKind, uint64_t>;
  struct Entry {
    std::shared_ptr<const KnownPart> part;
    // By page + slice: neighbouring slices may share a page. Empty: no page is known.
    std::vector<uint64_t> hashes;
    std::vector<bool> has;  // By slice.
    MemoryCharge memory, pages_memory;
  };
  // The bytes of an entry's hashes.
  static uint64_t HashBytes(const KnownPart& part) {
    return (SlicePages::Of(part.slices.back()).end + part.slices.size()) * sizeof(uint64_t);
  }

  mutable Mutex mu_;
  absl::flat_hash_map<Id, Entry> parts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
