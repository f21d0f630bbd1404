#pragma once
// The holders of each waymark that this member owns. Soft state: it may lack entries
// and have too many, and a Match with the holder finds out.

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "common/concurrency/mutex.h"
#include "services/cache/cluster/directory/waymarks.h"

namespace cairn::cache {

// How soon a holder can give a block, for those who choose between holders.
enum class TierClass : uint8_t { kMemory, kDisk, kCold };

// One stream of announcements: a holder gets a new number when it announces everything again.
using HolderNumber = uint16_t;

struct HolderEntry {
  HolderNumber holder = 0;
  TierClass tier = TierClass::kMemory;
  bool operator==(const HolderEntry&) const = default;
};
using HolderEntries = absl::InlinedVector<HolderEntry, 4>;

// Takes 9 bytes for each holder of a waymark if it has one, and less if it has more, in a table
// that is half full. Over its budget it forgets what was announced first, half a shard at a time.
// Thread-safe.
class DirectoryTable {
 public:
  static constexpr size_t kMostHolders = 8;  // Limit for the holders of a waymark.
  static constexpr HolderNumber kMostNumbers = (1 << 14) - 1;

  explicit DirectoryTable(uint64_t max_bytes);

  // Numbers from 1 on, which stay taken until a sweep has removed all that they held. 0: none is
  // free.
  HolderNumber NewHolder();
  // Its entries are invisible from now on.
  void RemoveHolder(HolderNumber holder);
  // Removes entries of holders that are gone from the next shard. Returns true when a round is
  // complete. Call it again and again, from one thread.
  bool SweepSome();

  // Adds a holder or changes its tier. When there is no place left, it takes that of `instead`, or
  // of one that came before.
  void Add(WaymarkHash hash, HolderEntry entry, HolderNumber instead = 0);
  void Remove(WaymarkHash hash, HolderNumber holder);
  // Its holders, best tier first.
  HolderEntries Find(WaymarkHash hash) const;

  uint64_t entries() const;  // Waymarks.
  uint64_t bytes() const;
  uint64_t forgotten() const { return forgotten_.load(std::memory_order_relaxed); }

 private:
  // A holder in the upper 14 bits, its tier in the lower 2; 0: empty.
  using Packed = uint16_t;
  static constexpr size_t kInEntry = 4;
  using Slots = std::array<Packed, kInEntry>;
  using Map = absl::flat_hash_map<WaymarkHash, Slots>;
  // An empty shard takes some 150 bytes, which counts while a directory is small.
  static constexpr size_t kShardBits = 7;
  static constexpr size_t kShards = size_t{1} << kShardBits;
  struct Shard {
    mutable Mutex mu;
    // Entries that were announced since the shard was last full, and those from before. A waymark
    // is in one of them.
    Map recent ABSL_GUARDED_BY(mu);
    Map old ABSL_GUARDED_BY(mu);
    Map more ABSL_GUARDED_BY(mu);  // Holders beyond the first four.
  };

  static Packed Pack(HolderEntry entry) {
    return static_cast<Packed>(entry.holder << 2 | static_cast<uint16_t>(entry.tier));
  }
  static HolderEntry Unpack(Packed packed) {
    return {static_cast<HolderNumber>(packed >> 2), static_cast<TierClass>(packed & 3)};
  }
  static size_t Bytes(const Map& map) { return map.capacity() * (sizeof(Map::value_type) + 1); }
  // True: it was there.
  static bool Change(Slots& slots, HolderEntry entry);
  // In a free place. Those of holders that are gone are free before a sweep comes, too.
  bool Put(Slots& slots, HolderEntry entry) const;
  static bool Clear(Slots& slots, HolderNumber holder);
  static bool Empty(const Slots& slots);
  void SweepMap(Map& map) const;
  // Holders beyond the first four get places among them that have become free.
  void FillUp(Shard& shard) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  static uint64_t Bit(HolderNumber holder) { return uint64_t{1} << holder % 64; }
  bool alive(HolderNumber holder) const {
    return ((*alive_)[holder / 64].load(std::memory_order_relaxed) & Bit(holder)) != 0;
  }
  // The waymarks are multiples of a power of two; their upper bits are even.
  Shard& ShardOf(WaymarkHash hash) const { return (*shards_)[hash >> (64 - kShardBits)]; }

  const uint64_t max_shard_entries_;
  const std::unique_ptr<std::array<Shard, kShards>> shards_;
  // A bit for each number: whether its entries count.
  static constexpr size_t kAliveWords = (kMostNumbers + 64) / 64;
  const std::unique_ptr<std::array<std::atomic<uint64_t>, kAliveWords>> alive_;
  std::atomic<uint64_t> forgotten_{0};

  Mutex mu_;
  std::vector<HolderNumber> free_ ABSL_GUARDED_BY(mu_);
  // Removed before the round that is under way, and since it began.
  std::vector<HolderNumber> sweeping_ ABSL_GUARDED_BY(mu_), removed_ ABSL_GUARDED_BY(mu_);
  size_t next_shard_ ABSL_GUARDED_BY(mu_) = 0;
  HolderNumber next_number_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace cairn::cache
