#pragma once
// Bounds the bytes that many parties hold together, and shares them: one gets more only if it holds
// no more than is left for others, so n parties that give nothing back leave 1/(n+1) of the bytes.

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace cairn {

// Thread-safe, without locks.
class ByteBudget {
 public:
  explicit ByteBudget(uint64_t capacity) : capacity_(capacity) {}

  // For a party that holds `held` bytes already. False: others need the room.
  bool Take(uint64_t held, uint64_t bytes) {
    uint64_t used = used_.load(std::memory_order_relaxed);
    do {
      const uint64_t free = capacity_ - used;
      if (bytes > free || held > free - bytes) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return true;
  }
  void GiveBack(uint64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t capacity() const { return capacity_; }

 private:
  const uint64_t capacity_;
  std::atomic<uint64_t> used_{0};
};

// The bytes that one party holds of a budget. It goes where the bytes go, and its end gives them
// back, so that no hand-over can forget them. Movable, and not copyable: a copy of the bytes needs
// a share of its own. It keeps the budget alive. One thread at a time; several shares are
// independent.
class ByteShare {
 public:
  // A share of no budget: it counts nothing and refuses nothing.
  ByteShare() = default;
  explicit ByteShare(std::shared_ptr<ByteBudget> budget) : budget_(std::move(budget)) {}
  ByteShare(ByteShare&& other) noexcept { *this = std::move(other); }
  ByteShare& operator=(ByteShare&& other) noexcept {
    if (this == &other) return *this;
    GiveBack();
    budget_ = std::move(other.budget_);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  ByteShare(const ByteShare&) = delete;
  ByteShare& operator=(const ByteShare&) = delete;
  ~ByteShare() { GiveBack(); }

  // From now on the share holds `bytes`. False: the budget has no room for more, and nothing has
  // changed.
  [[nodiscard]] bool Resize(uint64_t bytes) {
    if (budget_ != nullptr) {
      if (bytes > bytes_ && !budget_->Take(bytes_, bytes - bytes_)) return false;
      if (bytes < bytes_) budget_->GiveBack(bytes_ - bytes);
    }
    bytes_ = bytes;
    return true;
  }
  // The party holds nothing any more.
  void Clear() { (void)Resize(0); }
  uint64_t bytes() const { return bytes_; }
  // An empty share of the same budget, for other bytes that belong to the same work.
  ByteShare Another() const { return ByteShare(budget_); }

 private:
  void GiveBack() {
    if (budget_ != nullptr) budget_->GiveBack(bytes_);
    bytes_ = 0;
  }

  std::shared_ptr<ByteBudget> budget_;
  uint64_t bytes_ = 0;
};

}  // namespace cairn
