#pragma once
// Remembers for a while why a block is gone, so that a miss can name the reason. It is a fixed
// table of 64-bit fingerprints, in which newer ones overwrite older ones. Thread-safe and
// lock-free: an entry that is lost or overwritten only turns "evicted" into "absent".

#include <atomic>
#include <cstdint>
#include <memory>

#include "cairn/common/namespace_spec.h"

namespace cairn::cache {

class RecentlyGone {
 public:
  enum class Why : uint8_t { kUnknown = 0, kEvicted = 1, kCorrupt = 2, kExpired = 3 };

  explicit RecentlyGone(size_t slots = 1 << 16)
      : slots_(slots), table_(new std::atomic<uint64_t>[slots]()) {}

  void Remember(const Digest& fingerprint, const BlockKey& key, Why why) {
    const uint64_t mark = Mark(fingerprint, key);
    table_[mark % slots_].store((mark & ~uint64_t{3}) | static_cast<uint64_t>(why),
                                std::memory_order_relaxed);
  }
  Why Find(const Digest& fingerprint, const BlockKey& key) const {
    const uint64_t mark = Mark(fingerprint, key);
    const uint64_t found = table_[mark % slots_].load(std::memory_order_relaxed);
    if ((found | 3) != (mark | 3)) return Why::kUnknown;
    return static_cast<Why>(found & 3);
  }
  size_t MemoryBytes() const { return slots_ * sizeof(table_[0]); }

 private:
  static uint64_t Mark(const Digest& fingerprint, const BlockKey& key) {
    const uint64_t mark = key.Hash() ^ (fingerprint.Hash() * 0x9e3779b97f4a7c15ull);
    return mark ^ (mark >> 31);
  }

  const size_t slots_;
  std::unique_ptr<std::atomic<uint64_t>[]> table_;
};

}  // namespace cairn::cache
