#include "services/cache/store/mover/promoter.h"

#include <algorithm>

#include "common/log/log.h"
#include "services/cache/store/block/part_grid.h"

namespace cairn::cache {

struct Promoter::Operation final : Transfer {
  Operation(Promoter* owner_in, Move move_in)
      : Transfer(&owner_in->context_, owner_in->route_, std::move(move_in)), owner(owner_in) {}

  // A sound part of another shape is as wrong as a damaged one.
  void Loaded(const std::shared_ptr<Transfer>& self) override {
    const PartForm& form = move.ns->storage().in_tier[route.source];
    for (size_t i = 0; i < parts.size(); ++i) {
      Status status = VerifyPartBytes(form, parts[i].rect, bytes[i]);
      if (status.ok()) {
        status = owner->context_.CheckOwner(*move.ns, move.key, parts[i], route.source);
      }
      if (status.code() == StatusCode::kInvalidArgument) {
        status = Errorf(StatusCode::kDataLoss, "{}", Message(status));
      }
      if (!status.ok()) return Stop(self, std::move(status));
    }
    sound = true;
    Store(self);
  }
  void Ended() override { owner->Finish(*this); }

  Promoter* const owner;
  bool sound = false;  // The source's bytes were verified: later errors are the target's.
};

Promoter::Promoter(NodeContext* context, Evictor* evictor, const Route& route)
    : context_(*context),
      evictor_(*evictor),
      route_(route),
      paced_(!context->tiers.IsMapped(route.source)),
      queue_({.capacity = context->options.mover_queue_capacity,
              .max_under_way = 8,
              .max_prefetch_under_way = 4}),
      pump_(context->executor, [this] { return StartOne(); }) {}

bool Promoter::StartOne() {
  auto move = queue_.Pop();
  if (!move) return false;
  if (paced_) context_.pace[route_.source].Begin();
  const auto operation = std::make_shared<Operation>(this, *std::move(move));
  Operation& op = *operation;
  NamespaceState& ns = *op.move.ns;
  Victims victims{.leased = false};
  if (!Pin(&op, &victims)) {
    Transfer::Stop(operation, Errorf(StatusCode::kCancelled, "there is nothing to move"));
    return true;
  }
  absl::InlinedVector<uint32_t, 1> lengths;
  for (const PartPlace& part : op.parts) lengths.push_back(part.bytes[route_.source]);
  // A reader of a prefix larger than the arena pins what it is being sent from there, and what lies
  // before it: without a rest, nobody could write until it is done.
  const uint64_t keep_free =
      route_.target == TierKind::kHost ? context_.tiers.host->GetStats().capacity_bytes / 8 : 0;
  victims.beneficiary = ns.tenant().get();
  auto held = evictor_.Hold(ns, route_.target, lengths, victims);
  if (!held.ok()) {
    Transfer::Stop(operation, held.status());
    return true;
  }
  op.held = *std::move(held);
  auto room = evictor_.ReserveAll(route_.target, lengths, keep_free, victims,
                                  evictor_.RoomOf(ns, route_.target),
                                  context_.tiers.Get(route_.target)->divided() ? &ns : nullptr);
  if (!room.ok()) {
    Transfer::Stop(operation, room.status());
    return true;
  }
  op.targets = *std::move(room);
  Transfer::Load(operation);
  return true;
}

bool Promoter::Pin(Operation* operation, Victims* victims) {
  Operation& op = *operation;
  NamespaceState& ns = *op.move.ns;
  NamespaceLock lock(ns, context_.tiers);
  const auto ref = ns.index.FindAlive(op.move.key);
  if (ns.dropped.load(std::memory_order_relaxed) || !ref ||
      ns.index.MetaAt(*ref).in(route_.target) || !ns.index.MetaAt(*ref).in(route_.source)) {
    return false;
  }
  op.parts = ns.index.PartsOf(*ref);
  op.pin = ns.index.PinBlock(*ref);
  if (op.move.priority == MovePriority::kPrefetch) {
    victims->used_before = RankBelowHint(ns.index.MetaAt(*ref));
  }
  // A block that is saved from a faster tier is not worth more than those that are there.
  const bool saved =
      op.move.priority == MovePriority::kRebalance && Faster(route_.source, route_.target);
  if (saved) victims->used_before = ns.index.MetaAt(*ref).last_use;
  return true;
}

// A block that was last used some time ago is likely to be used again after as much time. The hint
// says when its block is used, so it is worth more than those that rested longer than it has left.
uint64_t Promoter::RankBelowHint(const BlockMeta& hinted) const {
  const uint32_t now = context_.UseTicksNow();
  const uint32_t left = hinted.last_use > now ? hinted.last_use - now : 0;
  return now - std::min(now, left);
}

void Promoter::Finish(Operation& op) {
  NamespaceState& ns = *op.move.ns;
  const Status status = op.Outcome();
  Tier& target = *context_.tiers.Get(route_.target);
  // Bytes on a device that was lost since are no copy.
  const bool lost = std::any_of(op.targets.begin(), op.targets.end(),
                                [&](const Extent& extent) { return target.IsLost(extent); });
  const bool moved = status.ok() && !lost;
  uint64_t bytes = 0;
  if (moved) {
    for (const Extent& extent : op.targets) bytes += extent.length;
  }
  if (paced_) context_.pace[route_.source].End(bytes);
  bool shown = false;
  if (moved) {
    NamespaceLock lock(ns, context_.tiers);
    const auto ref = ns.index.FindAlive(op.move.key);
    if (!ns.dropped.load(std::memory_order_relaxed) && ref &&
        !ns.index.MetaAt(*ref).in(route_.target) &&
        ns.index.LiesAt(*ref, route_.source, op.parts)) {
      ns.index.AddToTier(*ref, route_.target, op.targets);
      // It is no last copy any more.
      if (Faster(route_.source, route_.target)) ns.index.SetDirty(*ref, route_.source, false);
      context_.Publish(CacheEvent::Kind::kTierAdded, ns, op.move.key, route_.target, std::nullopt,
                       ns.index.PoolAt(*ref));
      if (op.move.priority == MovePriority::kPrefetch) ns.index.MarkPrefetched(*ref);
      shown = true;
    }
  }
  if (shown) {
    if (Faster(route_.target, route_.source)) context_.counters.promoted_blocks.Add();
    if (op.move.priority == MovePriority::kPrefetch) context_.counters.prefetched_blocks.Add();
  } else {
    evictor_.ReleaseAll(route_.target, op.targets);
    const bool bad =
        status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kNotFound;
    if (bad && !op.sound) {
      log::Warn("block_corrupt", {{"tier", std::string(Name(route_.source))},
                                  {"key", op.move.key.Hex()},
                                  {"error", Message(status)}});
      context_.RemoveCorrupt(ns, op.move.key, route_.source, op.parts[0].extent[route_.source]);
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
