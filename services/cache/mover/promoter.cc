#include "services/cache/mover/promoter.h"

#include <algorithm>

#include "common/log/log.h"
#include "services/cache/block/part_grid.h"
#include "services/cache/mover/transfer.h"

namespace cairn::cache {
namespace {

constexpr TierKind kDisk = TierKind::kDisk;

absl::InlinedVector<uint32_t, 1> LengthsOnDisk(const PartPlaces& parts) {
  absl::InlinedVector<uint32_t, 1> lengths;
  for (const PartPlace& part : parts) lengths.push_back(part.bytes[kDisk]);
  return lengths;
}

}  // namespace

struct Promoter::Operation : Transfer {
  Operation(Promoter* owner_in, Move move_in)
      : Transfer(&owner_in->context_, std::move(move_in)), owner(owner_in) {}
  ~Operation() { owner->Finish(*this); }

  Promoter* const owner;
};

Promoter::Promoter(NodeContext* context, Evictor* evictor)
    : context_(*context),
      evictor_(*evictor),
      queue_({.capacity = context->options.mover_queue_capacity,
              .max_under_way = 8,
              .max_prefetch_under_way = 4}),
      pump_(context->executor, [this] { return StartOne(); }) {}

MoveQueue::PushedAll Promoter::Request(const NamespacePtr& ns,
                                       std::span<const MoveQueue::Wanted> wanted,
                                       MovePriority priority,
                                       const std::weak_ptr<const void>& waiter) {
  if (context_.tiers.disk == nullptr) return {.full = wanted.size()};
  return queue_.PushAll(ns, wanted, priority, waiter);
}

bool Promoter::StartOne() {
  auto move = queue_.Pop();
  if (!move) return false;
  context_.pace[kDisk].Begin();
  auto operation = std::make_shared<Operation>(this, *std::move(move));
  Operation& op = *operation;
  NamespaceState& ns = *op.move.ns;
  uint64_t below = UINT64_MAX;
  {
    NamespaceLock lock(ns, context_.tiers);
    const auto ref = ns.index.FindAlive(op.move.key);
    if (ns.dropped.load(std::memory_order_relaxed) || !ref ||
        ns.index.MetaAt(*ref).in(TierKind::kHost)) {
      return true;
    }
    op.parts = ns.index.PartsOf(*ref);
    op.pin = ns.index.PinBlock(*ref);
    if (op.move.priority == MovePriority::kPrefetch) below = RankBelowHint(ns.index.MetaAt(*ref));
  }
  // A reader of a prefix larger than the arena pins all that it promotes: without a rest, nobody
  // could write until he is done.
  auto room = evictor_.ReserveAll(TierKind::kHost, LengthsOnDisk(op.parts),
                                  context_.tiers.host->GetStats().capacity_bytes / 8, below,
                                  evictor_.RoomOf(ns));
  if (!room.ok()) {
    op.Fail(room.status());
    return true;
  }
  op.targets = *std::move(room);
  for (size_t i = 0; i < op.parts.size(); ++i) {
    context_.tiers.disk->Read(
        op.parts[i].In(TierKind::kDisk), context_.tiers.host->Map(op.targets[i]),
        [operation](Status status) { operation->PartDone(std::move(status)); });
  }
  return true;
}

// A block that was last used some time ago is likely to be used again after as much time. The hint
// says when its block is used, so it is worth more than those that rested longer than it has left.
uint64_t Promoter::RankBelowHint(const BlockMeta& hinted) const {
  const uint32_t now = context_.UseTicksNow();
  const uint32_t left = hinted.last_use > now ? hinted.last_use - now : 0;
  return context_.policy.Rank({.last_use = now - std::min(now, left),
                               .uses = hinted.uses,
                               .bytes = hinted.bytes_in(TierKind::kDisk),
                               .recompute_seconds = hinted.recompute_seconds});
}

// Runs on the thread of the last read, without locks held.
void Promoter::Finish(Operation& op) {
  NamespaceState& ns = *op.move.ns;
  Status status = op.Outcome();
  uint64_t bytes = 0;
  if (status.ok() && !op.targets.empty()) {
    for (size_t i = 0; status.ok() && i < op.parts.size(); ++i) {
      status = VerifyPartBytes(ns.form_in[kDisk], op.parts[i].rect,
                               context_.tiers.host->Map(op.targets[i]));
      bytes += op.targets[i].length;
    }
    // A sound part of another shape is as wrong as a damaged one.
    if (status.code() == StatusCode::kInvalidArgument)
      status = Errorf(StatusCode::kDataLoss, "{}", Message(status));
  }
  context_.pace[kDisk].End(status.ok() ? bytes : 0);
  bool shown = false;
  if (status.ok() && !op.targets.empty()) {
    NamespaceLock lock(ns, context_.tiers);
    const auto ref = ns.index.FindAlive(op.move.key);
    if (!ns.dropped.load(std::memory_order_relaxed) && ref &&
        !ns.index.MetaAt(*ref).in(TierKind::kHost) &&
        ns.index.LiesAt(*ref, TierKind::kDisk, op.parts)) {
      ns.index.AddToTier(*ref, TierKind::kHost, op.targets);
      context_.Publish(CacheEvent::Kind::kTierAdded, ns, op.move.key, TierKind::kHost);
      if (op.move.priority == MovePriority::kPrefetch) ns.index.MarkPrefetched(*ref);
      shown = true;
    }
  }
  if (shown) {
    context_.counters.promoted_blocks.Add();
    if (op.move.priority == MovePriority::kPrefetch) context_.counters.prefetched_blocks.Add();
  } else {
    evictor_.ReleaseAll(TierKind::kHost, op.targets);
    if (status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kNotFound) {
      log::Warn("block_corrupt",
                {{"tier", "disk"}, {"key", op.move.key.Hex()}, {"error", Message(status)}});
      context_.RemoveCorrupt(ns, op.move.key, TierKind::kDisk, op.parts[0].extent[kDisk]);
    }
  }
  if (op.pin != kNoPin) {
    NamespaceLock lock(ns, context_.tiers);
    ns.index.Unpin(op.pin, &lock.released);
  }
  queue_.Done(op.move);
  context_.progress.Notify();
  pump_.Kick();
}

}  // namespace cairn::cache
