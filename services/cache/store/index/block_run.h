#pragma once
// The blocks of one tree node: a run without branches. The keys lie next to each other, so that a
// match compares them at the speed of memory.
//
//   one allocation, 80 bytes a block:  key[0] .. key[capacity-1] | meta[0] .. meta[capacity-1]
//
// Grows by a half, shrinks when two thirds are empty. Not thread-safe.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "cairn/common/namespace_spec.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache {

// The index's record of a block. The common block has one part that covers the grid, or its pool's
// row of it: its extents are here. Others keep their parts in a side table, at extent[0].
struct BlockMeta {
  enum Flag : uint8_t {
    kManyParts = 1 << 0,
    // Came to the host tier because of a hint, and was not matched since then.
    kPrefetched = 1 << 1,
    // Begins a sequence: some codecs keep its first token apart.
    kAtStart = 1 << 2,
  };
  // The bits of `flags` above them: the number of the block's pool.
  static constexpr unsigned kPoolShift = 3;
  static_assert(kMaxPools <= (256u >> kPoolShift));

  ByTier<uint64_t> extent = {};
  // All parts, in each tier that holds them: they differ where a ladder encodes again. 0 elsewhere.
  ByTier<uint32_t> bytes = {};
  uint32_t last_use = 0;  // UseTicks.
  float recompute_seconds = 0;
  uint8_t uses = 0;   // Matches since it was stored; saturates.
  uint8_t group = 0;  // The block's group, for the eviction policy.
  uint8_t flags = 0;
  // Bit sets of TierKind. `dirty`: the copy waits to be copied to another tier and is not evicted
  // until then.
  uint8_t tiers : 4 = 0;
  uint8_t dirty : 4 = 0;
  static_assert(kTierCount <= 4);

  static constexpr uint8_t Bit(TierKind tier) {
    return static_cast<uint8_t>(1u << static_cast<unsigned>(tier));
  }
  uint32_t pool() const { return flags >> kPoolShift; }
  void SetPool(uint32_t pool) { flags |= static_cast<uint8_t>(pool << kPoolShift); }  // Once.
  // A block without a tier is a tombstone: it keeps the path to its descendants, and matches
  // nothing.
  bool alive() const { return tiers != 0; }
  bool in(TierKind tier) const { return (tiers & Bit(tier)) != 0; }
  bool dirty_in(TierKind tier) const { return (dirty & Bit(tier)) != 0; }
  uint32_t bytes_in(TierKind tier) const { return bytes[tier]; }
  // The fastest tier that holds the block: readers get it from there. nullopt: a tombstone.
  std::optional<TierKind> fastest() const { return FastestOf(tiers); }
  // REQUIRES: alive.
  TierKind served_from() const { return *fastest(); }
  uint32_t served_bytes() const { return alive() ? bytes_in(served_from()) : 0; }

  // The fastest of a bit set of tiers; nullopt of none.
  static constexpr std::optional<TierKind> FastestOf(unsigned tiers) {
    for (const TierKind tier : kTiersByRank) {
      if ((tiers & Bit(tier)) != 0) return tier;
    }
    return std::nullopt;
  }
};
static_assert(sizeof(BlockMeta) == 48);

class BlockRun {
 public:
  BlockRun() = default;
  ~BlockRun() { std::free(keys_); }
  BlockRun(BlockRun&& o) noexcept { *this = std::move(o); }
  BlockRun& operator=(BlockRun&& o) noexcept {
    std::swap(keys_, o.keys_);
    std::swap(size_, o.size_);
    std::swap(capacity_, o.capacity_);
    return *this;
  }

  uint32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const BlockKey* keys() const { return keys_; }
  const BlockKey& key(uint32_t i) const { return keys_[i]; }
  BlockMeta& meta(uint32_t i) { return metas()[i]; }
  const BlockMeta& meta(uint32_t i) const { return metas()[i]; }
  size_t MemoryBytes() const { return Allocated(capacity_); }

  void PushBack(const BlockKey& key, const BlockMeta& meta) {
    if (size_ == capacity_) Reallocate(capacity_ + std::max<uint32_t>(1, capacity_ / 2));
    keys_[size_] = key;
    metas()[size_] = meta;
    ++size_;
  }

  // Moves blocks [begin, size) of `source` to the end of this run.
  void TakeTail(BlockRun& source, uint32_t begin) {
    const uint32_t count = source.size_ - begin;
    if (count == 0) return;
    if (size_ + count > capacity_) {
      Reallocate(std::max(size_ + count, size_ == 0 ? 0 : capacity_ + capacity_ / 2));
    }
    std::memcpy(static_cast<void*>(keys_ + size_), source.keys_ + begin, count * sizeof(BlockKey));
    std::memcpy(static_cast<void*>(metas() + size_), source.metas() + begin,
                count * sizeof(BlockMeta));
    size_ += count;
    source.Resize(begin);
  }

  void PopBack() { Resize(size_ - 1); }

 private:
  // With malloc's header.
  static size_t Allocated(uint32_t capacity) {
    return capacity == 0 ? 0 : capacity * (sizeof(BlockKey) + sizeof(BlockMeta)) + 16;
  }
  BlockMeta* metas() const { return reinterpret_cast<BlockMeta*>(keys_ + capacity_); }

  void Resize(uint32_t size) {
    size_ = size;
    if (size_ == 0 || size_ < capacity_ / 3) Reallocate(size_);
  }

  void Reallocate(uint32_t capacity) {
    BlockKey* keys = nullptr;
    if (capacity > 0) {
      keys = static_cast<BlockKey*>(std::malloc(capacity * (sizeof(BlockKey) + sizeof(BlockMeta))));
      if (keys == nullptr) std::abort();
      if (size_ > 0) {
        std::memcpy(static_cast<void*>(keys), keys_, size_ * sizeof(BlockKey));
        std::memcpy(static_cast<void*>(keys + capacity), metas(), size_ * sizeof(BlockMeta));
      }
    }
    std::free(keys_);
    keys_ = keys;
    capacity_ = capacity;
  }

  BlockKey* keys_ = nullptr;
  uint32_t size_ = 0;
  uint32_t capacity_ = 0;
};

}  // namespace cairn::cache
