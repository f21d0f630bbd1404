#pragma once
// Bounds the bytes that all fetches together are sending to readers.

#include <cstdint>
#include <list>
#include <memory>

#include "common/concurrency/mutex.h"

namespace cairn::rpc {

// Thread-safe. Shares may outlive it: gRPC lets go of a frame's bytes in its own time.
class SendBudget {
 public:
  // Waits for room. Any thread may call OnRoom, even a thread of gRPC that holds locks, so it must
  // not call gRPC or the budget.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    virtual void OnRoom() = 0;
  };

 private:
  struct State {
    explicit State(uint64_t bytes) : capacity(bytes) {}

    const uint64_t capacity;
    Mutex mu;
    uint64_t used ABSL_GUARDED_BY(mu) = 0;
    // First come, first served.
    std::list<std::pair<Waiter*, uint64_t>> waiting ABSL_GUARDED_BY(mu);
  };

 public:
  // Bytes that go back when it is destroyed.
  class Share {
   public:
    Share(std::shared_ptr<State> state, uint64_t bytes) : state_(std::move(state)), bytes_(bytes) {}
    ~Share() { GiveBack(*state_, bytes_); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    // Gives back what is more than `bytes`. Before the share is given to anybody else.
    void ShrinkTo(uint64_t bytes) {
      if (bytes >= bytes_) return;
      GiveBack(*state_, bytes_ - bytes);
      bytes_ = bytes;
    }

   private:
    const std::shared_ptr<State> state_;
    uint64_t bytes_;
  };

  explicit SendBudget(uint64_t capacity) : state_(std::make_shared<State>(capacity)) {}

  // nullptr: others use too much or came earlier. Then `waiter` is told once and asks again with
  // `again`. A request for more than the whole budget waits until it can have all of it.
  std::shared_ptr<Share> Take(uint64_t bytes, Waiter* waiter, bool again) {
    State& s = *state_;
    bytes = std::min(bytes, s.capacity);
    MutexLock lock(s.mu);
    // A waiter that was told already has its bytes, so that nobody overtakes it on the way here.
    if (again) return std::make_shared<Share>(state_, bytes);
    if (!s.waiting.empty() || s.used + bytes > s.capacity) {
      s.waiting.emplace_back(waiter, bytes);
      return nullptr;
    }
    s.used += bytes;
    return std::make_shared<Share>(state_, bytes);
  }
  // The waiter wants nothing any more. False: it does not wait, or was told already.
  bool Forget(Waiter* waiter) {
    MutexLock lock(state_->mu);
    return std::erase_if(state_->waiting, [waiter](const auto& w) { return w.first == waiter; }) >
           0;
  }

  uint64_t used() const {
    MutexLock lock(state_->mu);
    return state_->used;
  }
  uint64_t capacity() const { return state_->capacity; }
  // Somebody waits.
  bool short_of_room() const {
    MutexLock lock(state_->mu);
    return !state_->waiting.empty();
  }

 private:
  static void GiveBack(State& s, uint64_t bytes) {
    MutexLock lock(s.mu);
    s.used -= bytes;
    while (!s.waiting.empty() && s.used + s.waiting.front().second <= s.capacity) {
      const auto [waiter, wants] = s.waiting.front();
      s.waiting.pop_front();
      s.used += wants;
      waiter->OnRoom();  // Under the lock: after Forget said no, the waiter has been told.
    }
  }

  const std::shared_ptr<State> state_;
};

}  // namespace cairn::rpc
