#pragma once
// One bound for the memory of the requests that calls under way have decoded. A decoded request may
// be many times as large as its frame, and it stays while the call waits for a thread.
//
// A request takes its bytes at once, so it must leave as many free for others as it takes: it gets
// at most half of what is free. Only one request above half of the bound is admitted at a time.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "cairn/common/status.h"
#include "common/memory/fair_budget.h"

namespace cairn::rpc {

// Thread-safe. Shares may outlive it.
class RequestBytes {
 public:
  // Frames below this are not counted: decoded, they are small whatever is in them.
  static constexpr uint64_t kSmallFrame = 512;

  // Bytes that go back when it is destroyed. Movable.
  struct Share {
    ByteShare bytes = {};
    ByteShare place = {};  // The place of the one large request, if this is it.
  };

  // `setting` bounds it.
  RequestBytes(uint64_t capacity, std::string_view setting)
      : setting_(setting), budget_(std::make_shared<FairBudget>(capacity)) {}

  // RESOURCE_EXHAUSTED: others hold too much. A request above half of the bound, however large,
  // passes when no other such request is under way; it counts as half of what is free.
  Result<Share> Take(uint64_t bytes) {
    Share share{.bytes = ByteShare(budget_), .place = ByteShare(large_)};
    if (bytes > budget_->capacity() / 2) {
      if (!share.place.Resize(1)) {
        ++refusals_;
        return Errorf(StatusCode::kResourceExhausted,
                      "memory of rpc: a request of {} bytes, while another one above half of {} "
                      "bytes is under way; see {}",
                      bytes, budget_->capacity(), setting_);
      }
      // Others may take some in between.
      for (bool taken = false; !taken;) {
        const uint64_t half = (budget_->capacity() - budget_->used()) / 2;
        taken = share.bytes.Resize(half, half);
      }
    } else if (!share.bytes.Resize(bytes, bytes)) {
      ++refusals_;
      return Errorf(
          StatusCode::kResourceExhausted,
          "memory of rpc: a request of {} bytes would exceed half of what is free, with {} of {} "
          "bytes of requests under way; see {}",
          bytes, budget_->used(), budget_->capacity(), setting_);
    }
    return share;
  }
  uint64_t used() const { return budget_->used(); }
  uint64_t refusals() const { return refusals_; }  // Since the start.

 private:
  const std::string_view setting_;
  const std::shared_ptr<FairBudget> budget_;
  const std::shared_ptr<FairBudget> large_ = std::make_shared<FairBudget>(1);
  std::atomic<uint64_t> refusals_{0};
};

}  // namespace cairn::rpc
