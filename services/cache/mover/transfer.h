#pragma once
// What a block's way between two tiers has in common, whichever way it goes: it is pinned, it has
// room in the target, one transfer per part is under way, and the first error counts.
//
// Shared by the callbacks of its parts: it ends when the last of them has run, or was dropped by a
// tier that went away. The class that derives from it ends the move in its destructor, on that
// thread and without locks held.

#include <atomic>
#include <utility>

#include "services/cache/mover/evictor.h"
#include "services/cache/mover/move_queue.h"
#include "services/cache/state/node_context.h"

namespace cairn::cache {

class Transfer {
 public:
  Transfer(NodeContext* context, Move move_in)
      : token_(&context->in_flight), move(std::move(move_in)) {}
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // The callback of one part.
  void PartDone(Status result) {
    parts_done_.fetch_add(1);
    if (!result.ok()) Fail(std::move(result));
  }
  void Fail(Status status) {
    MutexLock lock(mu_);
    if (status_.ok()) status_ = std::move(status);
  }
  // The first error; CANCELLED when not every part's callback has run.
  Status Outcome() const {
    MutexLock lock(mu_);
    if (status_.ok() && parts_done_.load() != parts.size()) {
      return Errorf(StatusCode::kCancelled, "the disk tier went away");
    }
    return status_;
  }

 private:
  const InFlight::Token token_;  // First made, last gone.

 public:
  // Set by the thread that starts it, before the first part's transfer.
  const Move move;
  PinId pin = kNoPin;
  PartPlaces parts;  // Empty: there is nothing to move.
  Extents targets;   // In the target, in the order of `parts`.

 protected:
  ~Transfer() = default;

 private:
  std::atomic<size_t> parts_done_{0};
  mutable Mutex mu_;
  Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
