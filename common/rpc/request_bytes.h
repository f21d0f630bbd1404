#pragma once
// One bound for the memory of the requests that calls under way have decoded. A decoded request may
// be many times as large as its frame, and it stays while the call waits for a thread.
//
// A request gets at most half of what is free, so whoever holds much leaves room for others. Only
// one request above half of the bound is admitted at a time.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "cairn/common/status.h"

namespace cairn::rpc {

// Thread-safe. Outlives its shares.
class RequestBytes {
 public:
  // Frames below this are not counted: decoded, they are small whatever is in them.
  static constexpr uint64_t kSmallFrame = 512;

  // Bytes that go back when it is destroyed. Movable.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept { *this = std::move(other); }
    Share& operator=(Share&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(bytes_, other.bytes_);
      std::swap(large_, other.large_);
      return *this;
    }
    ~Share() {
      if (owner_ == nullptr) return;
      owner_->used_.fetch_sub(bytes_, std::memory_order_relaxed);
      if (large_) owner_->large_.store(false, std::memory_order_release);
    }

   private:
    friend class RequestBytes;
    Share(RequestBytes* owner, uint64_t bytes, bool large)
        : owner_(owner), bytes_(bytes), large_(large) {}
    RequestBytes* owner_ = nullptr;
    uint64_t bytes_ = 0;
    bool large_ = false;
  };

  // `setting` bounds it.
  RequestBytes(uint64_t capacity, std::string_view setting)
      : capacity_(capacity), setting_(setting) {}

  // RESOURCE_EXHAUSTED: others hold too much. A request above half of the bound, however large,
  // passes when no other such request is under way; it counts as half of what is free.
  Result<Share> Take(uint64_t bytes) {
    const bool large = bytes > capacity_ / 2;
    if (large && large_.exchange(true, std::memory_order_acquire)) {
      return Errorf(StatusCode::kResourceExhausted,
                    "memory of rpc: a request of {} bytes, while another one above half of {} "
                    "bytes is under way; see {}",
                    bytes, capacity_, setting_);
    }
    uint64_t used = used_.load(std::memory_order_relaxed);
    uint64_t counted = 0;
    do {
      const uint64_t most = (capacity_ - used) / 2;
      if (!large && bytes > most) {
        return Errorf(
            StatusCode::kResourceExhausted,
            "memory of rpc: a request of {} bytes would exceed half of what is free, with {} of {} "
            "bytes of requests under way; see {}",
            bytes, used, capacity_, setting_);
      }
      counted = large ? most : bytes;
    } while (!used_.compare_exchange_weak(used, used + counted, std::memory_order_relaxed));
    return Share(this, counted, large);
  }
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  const uint64_t capacity_;
  const std::string_view setting_;
  std::atomic<uint64_t> used_{0};
  std::atomic<bool> large_{false};  // A request above half of the bound is under way.
};

}  // namespace cairn::rpc
