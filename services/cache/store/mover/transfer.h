#pragma once
// The way of a block between two tiers, whichever they are: the block is pinned, it has room in the
// target, one transfer per part is under way, and the first error counts.
//
//   Load ─► bytes of every part in memory ─► Loaded (checks, encodes, takes room) ─► Store ─► Ended
//     └── an error, or a tier that went away ──┴── Stop ───────────────────────────────┴──────►
//
// A tier has a bounded queue, so a block of many parts does not hand over all of them at once: at
// most kPartsAtOnce are under way. After the first error no more are started.
//
// The bytes are loaded to where they need the fewest copies: they stay where they lie if the source
// is mapped; they are read into the target if that is mapped and room is taken already; else they
// are read into buffers of the transfer.
//
// Shared by the callbacks of its parts. When the last of them has run, or was destroyed by a tier
// that went away, the transfer calls Ended, once, on the thread that noticed it and without locks
// held. The class that derives from it ends the move there. One thread at a time uses it, but for
// the callbacks.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "services/cache/store/block/recoder.h"
#include "services/cache/store/mover/evictor.h"
#include "services/cache/store/mover/move_queue.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

// From where to where blocks are copied. Both tiers are registered, and not the same.
struct Route {
  TierKind source;
  TierKind target;
};

class Transfer {
 public:
  static constexpr size_t kPartsAtOnce = 64;

  Transfer(NodeContext* context, const Route& route_in, Move move_in)
      : token_(&context->in_flight),
        context_(*context),
        route(route_in),
        move(std::move(move_in)) {}
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Begins: brings the bytes of every part into memory and calls Loaded, in this call or on the
  // thread of a read. After an error it calls Ended instead. REQUIRES: `parts` is not empty.
  static void Load(const std::shared_ptr<Transfer>& self);
  // Goes on after Loaded: writes `bytes` into `targets`, and then calls Ended. Parts that were read
  // into the target's memory are there already.
  static void Store(const std::shared_ptr<Transfer>& self);
  // Ends it with an error, in place of Load, or of Store after Loaded.
  static void Stop(const std::shared_ptr<Transfer>& self, Status status);

  // Every part was brought into memory. By the thread that Loaded runs on, and at the end.
  bool loaded() const { return loaded_; }
  // At the end: the first error. CANCELLED: a tier went away.
  Status Outcome() const {
    MutexLock lock(mu_);
    return status_;
  }

 private:
  const InFlight::Token token_;  // First made, last gone.

 protected:
  // Aborts if it has not ended: a pin, and callers that wait for the move, would stay forever.
  ~Transfer();
  // The next step is Store or Stop, in this call or later.
  virtual void Loaded(const std::shared_ptr<Transfer>& self) = 0;
  // Nothing of it is under way any more; Outcome says how it went.
  virtual void Ended() = 0;
  // The owner's description of a part, for tiers that outlive the process. Valid until the end.
  virtual std::string_view RecordOf(size_t /*part*/) const { return {}; }

  NodeContext& context_;

 public:
  const Route route;
  // Set by the thread that starts it, before Load.
  const Move move;
  PinId pin = kNoPin;
  PartPlaces parts;  // Empty: there is nothing to move.
  // In the target, in the order of `parts`. Set before Load, or before Store.
  Extents targets;
  HeldRoom held;  // For `targets`, until the index counts them.
  // The bytes that Store writes, in the order of `parts`. Loaded may replace them; they stay valid
  // until the end.
  absl::InlinedVector<std::span<const std::byte>, 1> bytes;

 private:
  // How far the loading of the parts, and then their storing, has come.
  struct Phase {
    bool storing = false;
    bool starting = false;  // A thread is about to start a part.
    bool over = false;
    size_t next = 0;
    size_t under_way = 0;
    size_t done = 0;
  };
  // Starts parts while there may be more under way, and goes on when the phase is over. One thread
  // at a time does so, and also for the others, so a tier that calls back at once does not make it
  // call itself.
  static void Advance(const std::shared_ptr<Transfer>& self);
  static void StartPart(const std::shared_ptr<Transfer>& self, bool storing, size_t part);
  void PartEnded(const Status& result);
  void End();

  std::vector<PartBuffer> buffers_;
  absl::InlinedVector<std::span<std::byte>, 1> destinations_;  // By part, of those that are loaded.
  bool in_target_ = false;  // The bytes were read into the target's memory.
  bool loaded_ = false;
  mutable Mutex mu_;
  Status status_ ABSL_GUARDED_BY(mu_);
  Phase phase_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::cache
