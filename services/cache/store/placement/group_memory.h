#pragma once
// Remembers the groups of blocks that left, by 32 bits of the hash of their key. 8 bytes a block.
//
// Buckets of eight, one cache line each. A full bucket forgets its entry that was unused for the
// longest time. Grows with `Fit`, never shrinks but to nothing. Not thread-safe.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

namespace cairn::cache {

class GroupMemory {
 public:
  static constexpr uint8_t kEmpty = 255;
  struct Entry {
    uint32_t tag = 0;
    uint16_t slot = 0;  // The slot of the last use, its low 16 bits.
    uint8_t group = 0;
    uint8_t uses = kEmpty;  // Saturates below that.
    bool full() const { return uses != kEmpty; }
  };
  static_assert(sizeof(Entry) == 8);

  // Room for at least `entries`.
  void Fit(size_t entries) {
    const size_t wanted = std::bit_ceil((entries + kWays - 1) / kWays);
    if (wanted <= buckets_.size()) return;
    std::vector<Bucket> old = std::move(buckets_);
    buckets_ = std::vector<Bucket>(wanted);
    for (const Bucket& bucket : old) {
      for (const Entry& entry : bucket.entries) {
        if (entry.full()) PlaceIn(BucketOf(entry.tag), entry, entry.slot);
      }
    }
  }
  size_t room() const { return buckets_.size() * kWays; }
  size_t size() const { return size_; }
  size_t MemoryBytes() const { return buckets_.capacity() * sizeof(Bucket); }

  // Returns the entry that was forgotten for it.
  std::optional<Entry> Put(uint64_t hash, uint16_t slot, uint8_t group, uint8_t uses,
                           uint16_t now) {
    if (buckets_.empty()) return std::nullopt;
    const uint8_t most = kEmpty - 1;
    const Entry entry{Tag(hash), slot, group, std::min(uses, most)};
    const auto forgotten = PlaceIn(BucketOf(entry.tag), entry, now);
    size_ += !forgotten;
    return forgotten;
  }

  // The next call is about this block: begins to read its bucket.
  void Prefetch(uint64_t hash) const {
    if (buckets_.empty()) return;
    __builtin_prefetch(&buckets_[Tag(hash) & (buckets_.size() - 1)]);
  }

  // Removes it.
  std::optional<Entry> Take(uint64_t hash) {
    if (buckets_.empty()) return std::nullopt;
    const uint32_t tag = Tag(hash);
    for (Entry& entry : BucketOf(tag).entries) {
      if (!entry.full() || entry.tag != tag) continue;
      const Entry found = entry;
      entry = {};
      --size_;
      return found;
    }
    return std::nullopt;
  }

 private:
  static constexpr size_t kWays = 8;
  struct alignas(64) Bucket {
    std::array<Entry, kWays> entries;
  };

  static uint32_t Tag(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }
  Bucket& BucketOf(uint32_t tag) { return buckets_[tag & (buckets_.size() - 1)]; }

  static std::optional<Entry> PlaceIn(Bucket& bucket, const Entry& entry, uint16_t now) {
    Entry* oldest = nullptr;
    for (Entry& place : bucket.entries) {
      if (!place.full()) {
        place = entry;
        return std::nullopt;
      }
      // The low bits of slots: ages up to 39 hours are told apart.
      if (oldest == nullptr ||
          static_cast<uint16_t>(now - place.slot) > static_cast<uint16_t>(now - oldest->slot)) {
        oldest = &place;
      }
    }
    const Entry forgotten = *oldest;
    *oldest = entry;
    return forgotten;
  }

  std::vector<Bucket> buckets_;
  size_t size_ = 0;
};

}  // namespace cairn::cache
