#pragma once
// The memory that the node may take, item by item. The sum of the bounds is what the node tells
// the operator that it needs (docs/operate/operations.md); whatever grows with what clients ask for
// is charged to an item before it is allocated.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "cairn/common/status.h"

namespace cairn::cache {

enum class MemoryItem : uint8_t {
  kHost,   // The arena of the host tier, and memory that its readers still map.
  kIndex,  // Blocks, their parts, where they lie on disk, and what remembers removed ones.
  // Memory of leases and reservations in addition to the bytes of the blocks, and the parts of the
  // index of dropped namespaces that leases keep.
  kLeases,
  kNamespaces,    // Texts and layouts of namespaces, in the engine and in the protocol's cache, and
                  // bumps.
  kFetchHeaders,  // Keys and places of the blocks that fetches under way have taken.
  kTransfers,     // Buffers of fetches that read from disk or from a source.
  kRpc,           // Frames and messages of gRPC.
  kWatches,       // Events that wait for watchers.
  kSessions,      // Sessions, and the rings of the same-node path.
  kCluster,       // Waymarks: this node's own, and those of others that it keeps.
  kDisk,          // RocksDB, blocks that are moved, copied or encoded again.
  kProcess,       // Code, threads, gRPC itself.
};
inline constexpr size_t kMemoryItems = 12;

// As in metrics and errors: "fetch_headers".
std::string_view Name(MemoryItem item);
// The setting that bounds the item; "" for those that have none (disk, process).
std::string_view SettingOf(MemoryItem item);

class MemoryAccount;

// Bytes of an item, given back when it is destroyed. Movable. Not thread-safe.
class [[nodiscard]] MemoryCharge {
 public:
  MemoryCharge() = default;
  MemoryCharge(MemoryCharge&& other) noexcept { *this = std::move(other); }
  MemoryCharge& operator=(MemoryCharge&& other) noexcept;
  ~MemoryCharge() { Clear(); }

  // Makes the charge larger or smaller. RESOURCE_EXHAUSTED as MemoryAccount::Charge; the charge
  // then stays as it is. A smaller one always succeeds.
  Status Resize(uint64_t bytes);
  void Clear();
  uint64_t bytes() const { return bytes_; }

 private:
  friend class MemoryAccount;
  MemoryCharge(MemoryAccount* account, MemoryItem item, uint64_t bytes)
      : account_(account), item_(item), bytes_(bytes) {}

  MemoryAccount* account_ = nullptr;  // nullptr: charged nowhere.
  MemoryItem item_ = MemoryItem::kProcess;
  uint64_t bytes_ = 0;
};

// Thread-safe, without locks. Outlives its charges.
class MemoryAccount {
 public:
  using Bounds = std::array<uint64_t, kMemoryItems>;  // Bytes, by MemoryItem.

  // For owners that count but do not bound: tests of parts that have a bound of their own.
  static Bounds Unbounded();

  explicit MemoryAccount(const Bounds& bounds) : bounds_(bounds) {}
  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;

  // RESOURCE_EXHAUSTED, with the item, the bytes, the bound and its setting: the item would exceed
  // its bound. Counted. `keep_free`: so much of the bound is left for other charges.
  Result<MemoryCharge> Charge(MemoryItem item, uint64_t bytes, uint64_t keep_free = 0);
  // For what is there already, or cannot be refused: may exceed the bound, so that the next Charge
  // is refused.
  MemoryCharge Take(MemoryItem item, uint64_t bytes);
  // For items that measure themselves and refuse by themselves: what the item has now.
  void Measure(MemoryItem item, uint64_t bytes) {
    used_[Index(item)].store(bytes, std::memory_order_relaxed);
  }

  uint64_t used(MemoryItem item) const {
    return used_[Index(item)].load(std::memory_order_relaxed);
  }
  uint64_t bound(MemoryItem item) const { return bounds_[Index(item)]; }
  // Charges that were refused since start.
  uint64_t refusals(MemoryItem item) const {
    return refusals_[Index(item)].load(std::memory_order_relaxed);
  }

 private:
  friend class MemoryCharge;
  static size_t Index(MemoryItem item) { return static_cast<size_t>(item); }
  Status Add(MemoryItem item, uint64_t bytes, uint64_t keep_free = 0);
  void Return(MemoryItem item, uint64_t bytes) {
    used_[Index(item)].fetch_sub(bytes, std::memory_order_relaxed);
  }

  const Bounds bounds_;
  std::array<std::atomic<uint64_t>, kMemoryItems> used_{};
  std::array<std::atomic<uint64_t>, kMemoryItems> refusals_{};
};

// The sum of all bounds, in bytes. UINT64_MAX if it is larger than that.
uint64_t Sum(const MemoryAccount::Bounds& bounds);

}  // namespace cairn::cache
