#include "services/cache/mover/promoter.h"

#include <algorithm>

#include "services/cache/block/part_grid.h"
#include "services/common/log/log.h"

namespace cairn::cache {

// One block on its way. Shared by the callbacks of its reads: it ends when the last of them has
// run, or was dropped by a tier that went away.
struct Promoter::Operation {
  Operation(Promoter* owner_in, Move move_in)
      : owner(owner_in), move(std::move(move_in)), token(&owner_in->context_.in_flight) {}
  ~Operation() { owner->Finish(*this); }

  void Done(Status result) {
    if (result.ok()) return;
    MutexLock lock(mu);
    if (status.ok()) status = std::move(result);
  }

  Promoter* const owner;
  const Move move;
  InFlight::Token token;
  PinId pin = kNoPin;
  PartPlaces parts;
  absl::InlinedVector<uint64_t, 1> host_ids;
  std::atomic<size_t> reads_done{0};
  Mutex mu;
  Status status ABSL_GUARDED_BY(mu);
};

Promoter::Promoter(NodeContext* context, Evictor* evictor)
    : context_(*context),
      evictor_(*evictor),
      queue_({.capacity = context->options.mover_queue_capacity, .max_under_way = 8}),
      pump_(context->executor, [this] { return StartOne(); }) {}

bool Promoter::Request(const NamespacePtr& ns, const BlockKey& key, MovePriority priority,
                       std::weak_ptr<const void> waiter) {
  if (context_.tiers.disk == nullptr) return false;
  return queue_.Push(ns, key, priority, std::move(waiter), /*anyway=*/false) !=
         MoveQueue::Pushed::kFull;
}

bool Promoter::StartOne() {
  auto move = queue_.Pop();
  if (!move) return false;
  auto operation = std::make_shared<Operation>(this, *std::move(move));
  Operation& op = *operation;
  CountBusyTime(+1);
  NamespaceState& ns = *op.move.ns;
  {
    NamespaceLock lock(ns, context_.tiers);
    const auto ref = ns.index.FindAlive(op.move.key);
    if (ns.dropped.load(std::memory_order_relaxed) || !ref ||
        ns.index.MetaAt(*ref).in(TierKind::kHost)) {
      return true;
    }
    op.parts = ns.index.PartsOf(*ref);
    op.pin = ns.index.PinBlock(*ref);
  }
  // A reader of a prefix larger than the arena pins all that it promotes: without a rest, nobody
  // could write until he is done.
  auto room = evictor_.ReserveAll(TierKind::kHost, op.parts,
                                  context_.tiers.host->GetStats().capacity_bytes / 8);
  if (!room.ok()) {
    op.Done(room.status());
    return true;
  }
  op.host_ids = *std::move(room);
  for (size_t i = 0; i < op.parts.size(); ++i) {
    const PartPlace& part = op.parts[i];
    const auto destination = context_.tiers.host->Map({op.host_ids[i], part.bytes});
    context_.tiers.disk->Read({part.extent[static_cast<size_t>(TierKind::kDisk)], part.bytes},
                              destination, [operation](Status status) {
                                operation->reads_done.fetch_add(1);
                                operation->Done(std::move(status));
                              });
  }
  return true;
}

// Runs on the thread of the last read, without locks held.
void Promoter::Finish(Operation& op) {
  NamespaceState& ns = *op.move.ns;
  Status status;
  {
    MutexLock lock(op.mu);
    status = op.status;
  }
  uint64_t bytes = 0;
  if (status.ok() && !op.host_ids.empty()) {
    if (op.reads_done.load() != op.parts.size()) {
      status = Errorf(StatusCode::kCancelled, "the disk tier went away");
    }
    for (size_t i = 0; status.ok() && i < op.parts.size(); ++i) {
      const auto mapped = context_.tiers.host->Map({op.host_ids[i], op.parts[i].bytes});
      status = VerifyPartBytes(ns.spec.layout, op.parts[i].rect, mapped);
      bytes += op.parts[i].bytes;
    }
    // A sound part of another shape is as wrong as a damaged one.
    if (status.code() == StatusCode::kInvalidArgument)
      status = Errorf(StatusCode::kDataLoss, "{}", Message(status));
  }
  bool shown = false;
  if (status.ok() && !op.host_ids.empty()) {
    NamespaceLock lock(ns, context_.tiers);
    const auto ref = ns.index.FindAlive(op.move.key);
    if (!ns.dropped.load(std::memory_order_relaxed) && ref &&
        !ns.index.MetaAt(*ref).in(TierKind::kHost) &&
        ns.index.LiesAt(*ref, TierKind::kDisk, op.parts)) {
      ns.index.AddToTier(*ref, TierKind::kHost, op.host_ids);
      context_.Publish(CacheEvent::Kind::kTierAdded, ns, op.move.key, TierKind::kHost);
      shown = true;
    }
  }
  if (shown) {
    context_.counters.promoted_blocks.Add();
    context_.counters.timed_bytes[static_cast<size_t>(TierKind::kDisk)].Add(bytes);
  } else {
    evictor_.ReleaseAll(TierKind::kHost, op.parts, op.host_ids);
    if (status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kNotFound) {
      log::Warn("block_corrupt",
                {{"tier", "disk"}, {"key", op.move.key.Hex()}, {"error", Message(status)}});
      context_.RemoveCorrupt(ns, op.move.key, TierKind::kDisk,
                             op.parts[0].extent[static_cast<size_t>(TierKind::kDisk)]);
    }
  }
  if (op.pin != kNoPin) {
    NamespaceLock lock(ns, context_.tiers);
    ns.index.Unpin(op.pin, &lock.released);
  }
  CountBusyTime(-1);
  queue_.Done(op.move);
  context_.progress.Notify();
  pump_.Kick();
}

void Promoter::CountBusyTime(int change) {
  const TimePoint now = context_.clock->Now();
  MutexLock lock(busy_mu_);
  if (change > 0) {
    if (active_++ == 0) busy_since_ = now;
  } else if (--active_ == 0) {
    context_.counters.timed_nanoseconds[static_cast<size_t>(TierKind::kDisk)].Add(
        static_cast<uint64_t>(std::max<int64_t>(0, (now - busy_since_).count())));
  }
}

}  // namespace cairn::cache
