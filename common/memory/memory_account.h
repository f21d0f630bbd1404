#pragma once
// The memory that a process may take, item by item. The sum of the bounds is what the process tells
// the operator that it needs (docs/operate/operations.md); whatever grows with what others ask for
// is charged to an item before it is allocated, or has a bound of its own and is measured here.
//
// Each process has an enum of its items, from 0 on, and specialises MemoryItems for it.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "cairn/common/status.h"

namespace cairn {

struct MemoryItemText {
  std::string_view name;     // As in metrics and errors: "fetch_headers".
  std::string_view setting;  // That bounds the item; "" for those that have none.
};
// `kTexts`: an array of MemoryItemText, by item.
template <typename Item>
struct MemoryItems;

template <typename Item>
class MemoryAccountOf;

// Bytes of an item, given back when it is destroyed. Movable. Not thread-safe.
template <typename Item>
class [[nodiscard]] MemoryChargeOf {
 public:
  MemoryChargeOf() = default;
  MemoryChargeOf(MemoryChargeOf&& other) noexcept { *this = std::move(other); }
  MemoryChargeOf& operator=(MemoryChargeOf&& other) noexcept {
    if (this == &other) return *this;
    Clear();
    account_ = std::exchange(other.account_, nullptr);
    item_ = other.item_;
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  ~MemoryChargeOf() { Clear(); }

  // Makes the charge larger or smaller. RESOURCE_EXHAUSTED as MemoryAccountOf::Charge; the charge
  // then stays as it is. A smaller one always succeeds.
  Status Resize(uint64_t bytes) {
    if (account_ == nullptr) return OkStatus();
    if (bytes > bytes_) {
      CAIRN_RETURN_IF_ERROR(account_->Add(item_, bytes - bytes_, 0));
    } else {
      account_->Return(item_, bytes_ - bytes);
    }
    bytes_ = bytes;
    return OkStatus();
  }
  void Clear() {
    if (account_ == nullptr) return;
    account_->Return(item_, bytes_);
    account_ = nullptr;
    bytes_ = 0;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  friend class MemoryAccountOf<Item>;
  MemoryChargeOf(MemoryAccountOf<Item>* account, Item item, uint64_t bytes)
      : account_(account), item_(item), bytes_(bytes) {}

  MemoryAccountOf<Item>* account_ = nullptr;  // nullptr: charged nowhere.
  Item item_{};
  uint64_t bytes_ = 0;
};

// Thread-safe, without locks. Outlives its charges.
template <typename Item>
class MemoryAccountOf {
 public:
  static constexpr size_t kItems = MemoryItems<Item>::kTexts.size();
  using Bounds = std::array<uint64_t, kItems>;  // Bytes, by item.
  using Charged = MemoryChargeOf<Item>;

  // For owners that count but do not bound: tests of parts that have a bound of their own.
  static Bounds Unbounded() {
    Bounds bounds;
    bounds.fill(UINT64_MAX);
    return bounds;
  }
  static const MemoryItemText& TextOf(Item item) { return MemoryItems<Item>::kTexts[Index(item)]; }

  explicit MemoryAccountOf(const Bounds& bounds) : bounds_(bounds) {}
  MemoryAccountOf(const MemoryAccountOf&) = delete;
  MemoryAccountOf& operator=(const MemoryAccountOf&) = delete;

  // RESOURCE_EXHAUSTED, with the item, the bytes, the bound and its setting: the item would exceed
  // its bound. Counted. `keep_free`: so much of the bound is left for other charges.
  Result<Charged> Charge(Item item, uint64_t bytes, uint64_t keep_free = 0) {
    CAIRN_RETURN_IF_ERROR(Add(item, bytes, keep_free));
    return Charged(this, item, bytes);
  }
  // For what is there already, or cannot be refused: may exceed the bound, so that the next Charge
  // is refused.
  Charged Take(Item item, uint64_t bytes) {
    used_[Index(item)].fetch_add(bytes, std::memory_order_relaxed);
    return Charged(this, item, bytes);
  }
  // For items that measure themselves: what the item has now.
  void Measure(Item item, uint64_t bytes) {
    used_[Index(item)].store(bytes, std::memory_order_relaxed);
  }
  // The same for those that refuse by themselves, too, with how often since the start.
  void Measure(Item item, uint64_t bytes, uint64_t refusals) {
    Measure(item, bytes);
    refusals_[Index(item)].store(refusals, std::memory_order_relaxed);
  }

  uint64_t used(Item item) const { return used_[Index(item)].load(std::memory_order_relaxed); }
  uint64_t bound(Item item) const { return bounds_[Index(item)]; }
  // Charges that were refused since start.
  uint64_t refusals(Item item) const {
    return refusals_[Index(item)].load(std::memory_order_relaxed);
  }

 private:
  friend class MemoryChargeOf<Item>;
  static size_t Index(Item item) { return static_cast<size_t>(item); }
  Status Add(Item item, uint64_t bytes, uint64_t keep_free) {
    const uint64_t bound = bounds_[Index(item)] - std::min(keep_free, bounds_[Index(item)]);
    uint64_t used = used_[Index(item)].load(std::memory_order_relaxed);
    do {
      if (used > bound || bytes > bound - used) {
        refusals_[Index(item)].fetch_add(1, std::memory_order_relaxed);
        return Errorf(StatusCode::kResourceExhausted,
                      "memory of {}: {} bytes more would exceed {} of {} bytes in use; see {}",
                      TextOf(item).name, bytes, used, bound, TextOf(item).setting);
      }
    } while (
        !used_[Index(item)].compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return OkStatus();
  }
  void Return(Item item, uint64_t bytes) {
    used_[Index(item)].fetch_sub(bytes, std::memory_order_relaxed);
  }

  const Bounds bounds_;
  std::array<std::atomic<uint64_t>, kItems> used_{};
  std::array<std::atomic<uint64_t>, kItems> refusals_{};
};

// The sum of all bounds, in bytes. UINT64_MAX if it is larger than that.
template <size_t kItems>
uint64_t Sum(const std::array<uint64_t, kItems>& bounds) {
  uint64_t sum = 0;
  for (const uint64_t bytes : bounds) {
    if (__builtin_add_overflow(sum, bytes, &sum)) return UINT64_MAX;
  }
  return sum;
}

}  // namespace cairn
