#pragma once
// Bounds the bytes that all fetches together are sending to readers, and shares them among
// connections: one gets more only if it has no more than are free for others, so n readers that
// take nothing leave 1/(n+1) of them. A connection always gets its first request, if that much is
// free.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

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
    std::map<std::string, uint64_t, std::less<>> used_by ABSL_GUARDED_BY(mu);  // Those with some.
    // First come, first served, but for those whose connection has its share.
    struct Waiting {
      Waiter* waiter;
      std::string party;
      uint64_t bytes;
    };
    std::list<Waiting> waiting ABSL_GUARDED_BY(mu);

    bool HasItsShare(std::string_view party, uint64_t bytes) const
        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
      const auto it = used_by.find(party);
      return it != used_by.end() && it->second + bytes > capacity - used;
    }
    void Use(std::string_view party, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
      used += bytes;
      used_by[std::string(party)] += bytes;
    }
    void GiveBack(std::string_view party, uint64_t bytes) {
      if (bytes == 0) return;  // The party may have nothing, and no entry.
      MutexLock lock(mu);
      used -= bytes;
      const auto it = used_by.find(party);
      if ((it->second -= bytes) == 0) used_by.erase(it);
      for (auto next = waiting.begin(); next != waiting.end();) {
        if (HasItsShare(next->party, next->bytes)) {
          ++next;
          continue;
        }
        if (used + next->bytes > capacity) return;  // It comes before all others.
        Use(next->party, next->bytes);
        Waiter* const waiter = next->waiter;
        next = waiting.erase(next);
        waiter->OnRoom();  // Under the lock: after Forget said no, the waiter has been told.
      }
    }
    // Nobody waits for room alone.
    bool IsNextInLine() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
      return std::all_of(waiting.begin(), waiting.end(), [this](const Waiting& w) {
        mu.AssertHeld();
        return HasItsShare(w.party, w.bytes);
      });
    }
  };

 public:
  // Bytes that go back when it is destroyed.
  class Share {
   public:
    Share(std::shared_ptr<State> state, std::string_view party, uint64_t bytes)
        : state_(std::move(state)), party_(party), bytes_(bytes) {}
    ~Share() { state_->GiveBack(party_, bytes_); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    // Gives back what is more than `bytes`. Before the share is given to anybody else.
    void ShrinkTo(uint64_t bytes) {
      if (bytes >= bytes_) return;
      state_->GiveBack(party_, bytes_ - bytes);
      bytes_ = bytes;
    }

   private:
    const std::shared_ptr<State> state_;
    const std::string party_;
    uint64_t bytes_;
  };

  explicit SendBudget(uint64_t capacity) : state_(std::make_shared<State>(capacity)) {}

  // `party`: the connection. nullptr: others use too much or came earlier, or the party has its
  // share. Then `waiter` is told once and asks again with `again`. A request for more than the
  // whole budget waits until it can have all of it.
  std::shared_ptr<Share> Take(std::string_view party, uint64_t bytes, Waiter* waiter, bool again) {
    State& s = *state_;
    bytes = std::min(bytes, s.capacity);
    MutexLock lock(s.mu);
    // A waiter that was told already has its bytes, so that nobody overtakes it on the way here.
    if (again) return std::make_shared<Share>(state_, party, bytes);
    if (s.used + bytes > s.capacity || s.HasItsShare(party, bytes) || !s.IsNextInLine()) {
      s.waiting.push_back({waiter, std::string(party), bytes});
      return nullptr;
    }
    s.Use(party, bytes);
    return std::make_shared<Share>(state_, party, bytes);
  }
  // The waiter wants nothing any more. False: it does not wait, or was told already.
  bool Forget(Waiter* waiter) {
    MutexLock lock(state_->mu);
    return std::erase_if(state_->waiting, [waiter](const auto& w) { return w.waiter == waiter; }) >
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
  const std::shared_ptr<State> state_;
};

}  // namespace cairn::rpc
