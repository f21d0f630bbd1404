#pragma once
// One bound for the memory of the requests that calls under way have decoded. What is decoded may
// be many times as large as its frame, and it stays while the call waits for a thread.

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
      return *this;
    }
    ~Share() {
      if (owner_ != nullptr) owner_->used_.fetch_sub(bytes_, std::memory_order_relaxed);
    }

   private:
    friend class RequestBytes;
    Share(RequestBytes* owner, uint64_t bytes) : owner_(owner), bytes_(bytes) {}
    RequestBytes* owner_ = nullptr;
    uint64_t bytes_ = 0;
  };

  // `setting` bounds it.
  RequestBytes(uint64_t capacity, std::string_view setting)
      : capacity_(capacity), setting_(setting) {}

  // RESOURCE_EXHAUSTED: others hold too much. A request that is larger than the whole bound passes
  // when it is the only one.
  Result<Share> Take(uint64_t bytes) {
    const uint64_t counted = std::min(bytes, capacity_);
    uint64_t used = used_.load(std::memory_order_relaxed);
    do {
      if (counted > capacity_ - used) {
        return Errorf(
            StatusCode::kResourceExhausted,
            "memory of rpc: a request of {} bytes would exceed {} of {} bytes of requests "
            "under way; see {}",
            bytes, used, capacity_, setting_);
      }
    } while (!used_.compare_exchange_weak(used, used + counted, std::memory_order_relaxed));
    return Share(this, counted);
  }
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  const uint64_t capacity_;
  const std::string_view setting_;
  std::atomic<uint64_t> used_{0};
};

}  // namespace cairn::rpc
