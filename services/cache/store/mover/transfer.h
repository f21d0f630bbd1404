#pragma once
// The steps that every move of a block between two tiers has, whichever they are: it is pinned, it
// has room in the target, one transfer per part is under way, and the first error counts.
//
//   Load ─► bytes of every part in memory ─► Loaded (checks, encodes, takes room) ─► Store
//
// A tier has a bounded queue, so a block of many parts does not hand over all of them at once: at
// most kPartsAtOnce are under way. After the first error no more are started.
//
// The bytes are loaded to where they need the fewest copies: they stay where they lie if the source
// is mapped; they are read into the target if that is mapped and room is taken already; else they
// are read into buffers of the transfer.
//
// Shared by the callbacks of its parts: it ends when the last of them has run, or was dropped by a
// tier that went away. The class that derives from it ends the move in its destructor, on that
// thread and without locks held. One thread at a time uses it, but for the callbacks.

#include <atomic>
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

  // Brings the bytes of every part into memory and calls Loaded, in this call or on the thread of
  // the last read. Does not call it after an error. REQUIRES: `parts` is not empty.
  static void Load(const std::shared_ptr<Transfer>& self);
  // Writes bytes() into `targets`. Parts that were read into the target's memory are there already.
  static void Store(const std::shared_ptr<Transfer>& self);

  void Fail(Status status) {
    MutexLock lock(mu_);
    if (status_.ok()) status_ = std::move(status);
  }
  // Every part was brought into memory. By the thread that Loaded runs on, and at the end.
  bool loaded() const { return all_loaded_; }
  // The first error; CANCELLED when not every part's callback has run.
  Status Outcome() const {
    MutexLock lock(mu_);
    if (status_.ok() && stored_.load() != parts.size()) {
      return Errorf(StatusCode::kCancelled, "the {} or the {} tier went away", Name(route.source),
                    Name(route.target));
    }
    return status_;
  }

 private:
  const InFlight::Token token_;  // First made, last gone.

 protected:
  ~Transfer() = default;
  virtual void Loaded(const std::shared_ptr<Transfer>& self) = 0;
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
  // The bytes that Store writes, in the order of `parts`. Loaded may replace them; they stay valid
  // until the end.
  absl::InlinedVector<std::span<const std::byte>, 1> bytes;

 private:
  // How far the loading, or the storing, of the parts has come.
  struct Phase {
    size_t next = 0;
    size_t under_way = 0;
    bool starting = false;
  };
  using PhaseOf = Phase Transfer::*;
  using StartPart = void (Transfer::*)(const std::shared_ptr<Transfer>& self, size_t part);
  // Starts parts while there may be more under way. One thread at a time does so, and also for the
  // others, so a tier that calls back at once does not make it call itself.
  static void StartParts(const std::shared_ptr<Transfer>& self, PhaseOf of, StartPart start);
  void PartEnded(PhaseOf of, const Status& result);
  void LoadPart(const std::shared_ptr<Transfer>& self, size_t part);
  void StorePart(const std::shared_ptr<Transfer>& self, size_t part);

  std::vector<PartBuffer> buffers_;
  // The destinations of the parts that are loaded.
  absl::InlinedVector<std::span<std::byte>, 1> destinations_;
  bool in_target_ = false;  // The bytes were read into the target's memory.
  bool all_loaded_ = false;
  std::atomic<size_t> loaded_{0};
  std::atomic<size_t> stored_{0};
  mutable Mutex mu_;
  Status status_ ABSL_GUARDED_BY(mu_);
  Phase load_ ABSL_GUARDED_BY(mu_);
  Phase store_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
