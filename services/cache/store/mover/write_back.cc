#include "services/cache/store/mover/write_back.h"

#include <algorithm>

#include "common/concurrency/runs_once.h"
#include "common/log/log.h"
#include "services/cache/store/block/part_grid.h"
#include "services/cache/store/block/record.h"
#include "services/cache/store/mover/copied_parts.h"
#include "services/cache/store/state/namespace_record.h"

namespace cairn::cache {
namespace {

Duration PauseAfter(int attempts) { return std::chrono::milliseconds(100) * (1 << (attempts - 1)); }

}  // namespace

struct WriteBack::Operation final : Transfer {
  Operation(WriteBack* owner_in, Move move_in)
      : Transfer(&owner_in->context_, owner_in->route_, std::move(move_in)), owner(owner_in) {}

  void Loaded(const std::shared_ptr<Transfer>& self) override { owner->Loaded(*this, self); }
  void Ended() override { owner->Finish(*this); }
  std::string_view RecordOf(size_t part) const override { return records[part]; }
  NamedBlock block() const { return {move.ns, move.key}; }

  WriteBack* const owner;
  uint64_t sequence = 0;                      // The one of its item in UnwrittenBlocks.
  std::optional<WriteBack::Ended> not_begun;  // It was not copied, and so it ended.
  Duration pause{0};                          // If it is postponed:
  UnwrittenBlocks::Wait waits_for{};          // the reason.
  DeclinedBlock declined;                     // If it is declined.
  std::optional<BlockKey> parent;
  float recompute_seconds = 0;
  int64_t used_at = 0;  // Seconds since 1970.
  bool at_start = false;
  CopiedParts copied;
  MemoryCharge memory;  // For `copied`.
  std::vector<std::string> records;
  bool too_large = false;  // For the target: another attempt will not help.
  // Its tenant may have no more in the target, and what it has there cannot go. Others' flushes
  // must not wait for that.
  bool over_limit = false;
  UnwrittenBlocks::Failure failure;
};

WriteBack::WriteBack(NodeContext* context, Evictor* evictor, const Route& route)
    : context_(*context),
      evictor_(*evictor),
      route_(route),
      target_(context->tiers.Get(route.target)),
      to_persistent_(target_ != nullptr && target_ == context->tiers.persistent),
      admission_({.high_water = context->options.disk_high_water,
                  .bytes_per_second = context->options.disk_write_budget,
                  .patience = context->options.disk_flush_after}),
      memory_(context),
      queue_({.capacity = context->options.mover_queue_capacity, .max_under_way = 8}),
      blocks_(context->clock),
      pump_(context->executor, [this] { return StartOne(); }) {}

void WriteBack::Add(const NamespacePtr& ns, const BlockKey& key, uint64_t bytes, uint64_t room) {
  if (target_ == nullptr) return;
  const auto [share, room_bytes] = ShareOf(*ns, room);
  if (!blocks_.Add({ns, key}, bytes, share, room_bytes)) TurnAway(ns, key, bytes, room);
  blocks_.Fill(&queue_, /*ignore_pauses=*/false);
  pump_.Kick();
}

std::pair<WaitingShares::Share, uint64_t> WriteBack::ShareOf(const NamespaceState& ns,
                                                             uint64_t room) const {
  if (route_.source != TierKind::kHost) {
    return {{kCommon, room}, context_.tiers.Get(route_.source)->GetStats().capacity_bytes};
  }
  const HostTier& host = *context_.tiers.host;
  const OwnerId owner = evictor_.OwnerOf(ns);
  // Until it has a segment, its blocks lie among the common ones.
  if (const uint64_t bytes = host.RoomBytes(owner); bytes > 0) return {{owner, room}, bytes};
  return {{kCommon, room}, host.RoomBytes(kCommon)};
}

void WriteBack::TurnAway(const NamespacePtr& ns, const BlockKey& key, uint64_t bytes,
                         uint64_t room) {
  uint16_t uses = 0;
  {
    NamespaceLock lock(*ns, context_.tiers);
    const auto ref = ns->index.FindAlive(key);
    if (!ref || !ns->index.MetaAt(*ref).in(route_.source)) return;
    uses = ns->index.MetaAt(*ref).uses;
    ns->index.SetDirty(*ref, route_.source, false);
  }
  context_.counters.crowded_copies.Add();
  blocks_.AddDeclined(
      {.ns = ns, .key = key, .bytes = bytes, .room = room, .uses = uses, .crowded = true});
}

void WriteBack::ReviewDeclined() {
  using Review = UnwrittenBlocks::Review;
  for (const auto& [number, d] : blocks_.DeclinedToReview()) {
    auto [share, room_bytes] = ShareOf(*d.ns, d.room);
    const bool taken = blocks_.TakeShare(*d.ns, share, room_bytes);
    if (!taken) share = {};
    Review review = Review::kGone;
    {
      NamespaceLock lock(*d.ns, context_.tiers);
      const auto ref = d.ns->index.FindAlive(d.key);
      const bool here = !d.ns->dropped.load(std::memory_order_relaxed) && ref &&
                        d.ns->index.MetaAt(*ref).in(route_.source) &&
                        !d.ns->index.MetaAt(*ref).in(route_.target);
      if (here) {
        const bool wanted = taken && (d.crowded || d.ns->index.MetaAt(*ref).uses > d.uses);
        review = wanted ? Review::kPutInLine : Review::kStays;
        if (wanted) d.ns->index.SetDirty(*ref, route_.source, true);
      }
    }
    blocks_.EndReview(number, *d.ns, review, share);
  }
}

DiskAdmission::Decision WriteBack::Admit(const Operation& op, const BlockMeta& meta,
                                         const UnwrittenBlocks::Known& known) {
  DiskAdmission::Candidate c{.bytes = meta.bytes_in(route_.source)};
  if (const Recoder* const recoder = op.move.ns->storage().recoder.get();
      to_persistent_ && recoder != nullptr) {
    c.bytes = std::min(c.bytes, recoder->MaxBlockBytes((meta.flags & BlockMeta::kAtStart) != 0));
  }
  const TierStats stats = target_->GetStats();
  c.used_share = static_cast<double>(stats.used_bytes) / static_cast<double>(stats.capacity_bytes);
  c.touched = meta.uses > 0 || context_.gone.Find(op.move.ns->fingerprint, op.move.key) ==
                                   RecentlyGone::Why::kEvicted;
  // A hint counts as a use at the time it names.
  c.hinted = meta.last_use > context_.UseTicksNow();
  c.waited = known.waited;
  c.flushed = known.flushed;
  c.unlimited = known.unlimited;
  return admission_.Decide(c, context_.clock->Now());
}

void WriteBack::Tick() {
  blocks_.ProbeParked();
  ReviewDeclined();
  ReleaseStalled();
  blocks_.Fill(&queue_, /*ignore_pauses=*/false);
  pump_.Kick();
  blocks_.Wake();
}

void WriteBack::ReleaseStalled() {
  const UnwrittenBlocks::Stall stall = blocks_.LookForStall(queue_.under_way() > 0);
  if (stall.began) {
    context_.counters.copy_stalls.Add();
    log::Warn("copies_stalled",
              {{"tier", std::string(Name(route_.target))}, {"blocks", log::Num(stall.blocks)}});
  }
  for (const auto& [ns, key] : stall.release) {
    NamespaceLock lock(*ns, context_.tiers);
    const auto ref = ns->index.FindAlive(key);
    if (ref && ns->index.MetaAt(*ref).in(route_.source)) {
      ns->index.SetDirty(*ref, route_.source, false);
    }
  }
}

bool WriteBack::TakeMemory(Operation& op, const BlockMeta& meta) {
  const uint64_t block_bytes = meta.bytes_in(route_.source);
  uint64_t bytes =
      context_.tiers.IsMapped(route_.source) && CopiedParts::AreLent(context_.tiers, op)
          ? block_bytes
          : 0;
  if (const Recoder* const recoder = op.move.ns->storage().recoder.get();
      to_persistent_ && recoder != nullptr) {
    bytes += recoder->WorkingBytes() +
             std::min<uint64_t>(recoder->MaxBlockBytes(op.at_start),
                                uint64_t{target_->max_extent_bytes()} * op.parts.size());
  }
  return memory_.Take({op.move.ns.get(), op.move.key}, bytes, &op.memory);
}

bool WriteBack::StartOne() {
  auto move = queue_.Pop();
  if (!move) {
    blocks_.Fill(&queue_, /*ignore_pauses=*/false);
    move = queue_.Pop();
  }
  if (!move) return false;
  const auto operation = std::make_shared<Operation>(this, *std::move(move));
  operation->not_begun = Decide(*operation);
  Status status = OkStatus();
  if (operation->not_begun) {
    status = Errorf(StatusCode::kCancelled, "the block is not copied now");
  } else if (to_persistent_) {
    status = PersistNamespace(context_, *operation->move.ns);
  }
  if (status.ok()) {
    Transfer::Load(operation);
  } else {
    Transfer::Stop(operation, std::move(status));
  }
  return true;
}

std::optional<WriteBack::Ended> WriteBack::Decide(Operation& op) {
  NamespaceState& ns = *op.move.ns;
  const UnwrittenBlocks::Known known = blocks_.Begin(op.block());
  op.sequence = known.sequence;
  NamespaceLock lock(ns, context_.tiers);
  const auto ref = ns.index.FindAlive(op.move.key);
  if (ns.dropped.load(std::memory_order_relaxed) || !ref) return Ended::kGone;
  const BlockMeta& meta = ns.index.MetaAt(*ref);
  if (!meta.in(route_.source) || meta.in(route_.target)) return Ended::kGone;
  op.parts = ns.index.PartsOf(*ref);
  op.at_start = (meta.flags & BlockMeta::kAtStart) != 0;
  // First of all: who waits for memory must not use up the write budget.
  if (!TakeMemory(op, meta)) {
    op.pause = kCopyPause;
    op.waits_for = UnwrittenBlocks::Wait::kMemory;
    return Ended::kPostponed;
  }
  const DiskAdmission::Decision decision = Admit(op, meta, known);
  if (decision.verdict == DiskAdmission::Verdict::kWait) {
    op.pause = decision.wait;
    op.waits_for = UnwrittenBlocks::Wait::kBudget;
    return Ended::kPostponed;
  }
  if (decision.verdict != DiskAdmission::Verdict::kCopy) {
    Counters& counters = context_.counters;
    (decision.verdict == DiskAdmission::Verdict::kOverBudget ? counters.over_budget_copies
                                                             : counters.untouched_copies)
        .Add();
    op.declined = {.ns = op.move.ns,
                   .key = op.move.key,
                   .bytes = meta.bytes_in(route_.source),
                   .room = known.room,
                   .uses = meta.uses};
    ns.index.SetDirty(*ref, route_.source, false);
    return Ended::kDeclined;
  }
  op.pin = ns.index.PinBlock(*ref);
  op.parent = ns.index.ParentOf(*ref);
  op.recompute_seconds = meta.recompute_seconds;
  op.used_at = context_.UnixSecondsOf(meta.last_use);
  return std::nullopt;
}

void WriteBack::Loaded(Operation& op, const std::shared_ptr<Transfer>& transfer) {
  const bool in_place = context_.tiers.IsMapped(route_.source);
  const bool lent = in_place && CopiedParts::AreLent(context_.tiers, op);
  const bool recodes = to_persistent_ && op.move.ns->storage().recoder != nullptr;
  if (in_place && !lent && !recodes) return Store(op, transfer);
  // A task of its own: promotions, and copies that need no encoding, do not wait for all of them,
  // and a tier's thread makes no room.
  const CopiedParts::Work work{.copy = lent,
                               .verify = lent || !in_place,
                               .recode = recodes,
                               .at_start = op.at_start,
                               .most_bytes = target_->max_extent_bytes()};
  const auto check_and_store = RunsOnce(
      [this, transfer, &op, work](Status status) {
        if (status.ok()) status = op.copied.Prepare(work, op, &context_.counters);
        if (!status.ok()) return Transfer::Stop(transfer, std::move(status));
        Store(op, transfer);
      },
      [] { return Errorf(StatusCode::kCancelled, "the executor went away"); });
  const Status posted = context_.executor->Post([check_and_store] { check_and_store(OkStatus()); });
  if (!posted.ok()) check_and_store(OkStatus());
}

void WriteBack::Store(Operation& op, const std::shared_ptr<Transfer>& transfer) {
  const NamespaceState& ns = *op.move.ns;
  absl::InlinedVector<uint32_t, 1> lengths;
  for (const auto& part : op.bytes) lengths.push_back(static_cast<uint32_t>(part.size()));
  const Victims victims{.beneficiary = ns.tenant().get()};
  auto held = evictor_.Hold(ns, route_.target, lengths);
  if (!held.ok()) {
    op.over_limit = true;
    return Transfer::Stop(transfer, held.status());
  }
  op.held = *std::move(held);
  auto room =
      evictor_.ReserveAll(route_.target, lengths, 0, victims, evictor_.RoomOf(ns, route_.target));
  if (!room.ok()) {
    op.too_large = room.status().code() == StatusCode::kInvalidArgument;
    return Transfer::Stop(transfer, room.status());
  }
  op.targets = *std::move(room);
  for (size_t i = 0; i < op.parts.size(); ++i) {
    op.records.push_back(EncodeRecord({.fingerprint = ns.fingerprint,
                                       .generation = ns.generation,
                                       .key = op.move.key,
                                       .parent = op.parent,
                                       .rect = op.parts[i].rect,
                                       .grid = ns.whole,
                                       .bytes = lengths[i],
                                       .recompute_seconds = op.recompute_seconds,
                                       .used_at = op.used_at}));
  }
  Transfer::Store(transfer);
}

WriteBack::Ended WriteBack::Leave(Operation& op, const Status& status) {
  NamespaceState& ns = *op.move.ns;
  const bool unreadable =
      status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kNotFound;
  // In the source, of bytes that no encoder wrote.
  std::optional<uint64_t> bad_extent = op.copied.bad_extent();
  if (unreadable && !op.loaded()) bad_extent = op.parts[0].extent[route_.source];
  const bool hopeless = op.copied.unencodable() || op.too_large || op.over_limit;
  if (!status.ok()) {
    const bool for_room = status.code() == StatusCode::kResourceExhausted;
    op.failure = blocks_.Fail(op.block(), op.sequence, for_room);
    op.pause = PauseAfter(std::max(op.failure.attempts, 1));
    op.waits_for = for_room ? UnwrittenBlocks::Wait::kRoom : UnwrittenBlocks::Wait::kFault;
  }
  Ended ended;
  {
    NamespaceLock lock(ns, context_.tiers);
    const auto ref = ns.index.FindAlive(op.move.key);
    const bool there = ref && !ns.dropped.load(std::memory_order_relaxed) &&
                       !ns.index.MetaAt(*ref).in(route_.target) &&
                       ns.index.LiesAt(*ref, route_.source, op.parts);
    if (bad_extent) {
      ended = Ended::kCorrupt;
    } else if (!there) {
      ended = Ended::kGone;
    } else if (status.ok()) {
      ended = Ended::kWritten;
    } else if (hopeless) {
      ended = Ended::kHopeless;
    } else {
      ended = op.failure.again ? Ended::kRetry : Ended::kParked;
    }
    if (ended == Ended::kWritten) {
      ns.index.AddToTier(*ref, route_.target, op.targets);
      context_.Publish(CacheEvent::Kind::kTierAdded, ns, op.move.key, route_.target, std::nullopt,
                       ns.index.PoolAt(*ref));
    }
    if (there && ended != Ended::kRetry) ns.index.SetDirty(*ref, route_.source, false);
    ns.index.Unpin(op.pin, &lock.released);
  }
  if (ended != Ended::kWritten) evictor_.ReleaseAll(route_.target, op.targets);
  if (ended == Ended::kCorrupt) {
    log::Warn("block_corrupt", {{"tier", std::string(Name(route_.source))},
                                {"key", op.move.key.Hex()},
                                {"error", Message(status)}});
    context_.RemoveCorrupt(ns, op.move.key, route_.source, *bad_extent);
  }
  return ended;
}

void WriteBack::Finish(Operation& op) {
  // Before others take it: the buffers are gone then.
  op.copied.Clear();
  memory_.GiveBack(&op.memory);
  const Status status = op.Outcome();
  const Ended ended = op.not_begun ? *op.not_begun : Leave(op, status);
  // Before the block is in line again: the queue would take it for the move that ends here.
  queue_.Done(op.move);
  UnwrittenBlocks::Waited waited;
  switch (ended) {
    case Ended::kWritten:
      waited = blocks_.End(op.block(), op.sequence);
      blocks_.Unpark();
      break;
    case Ended::kPostponed:
      if (blocks_.Postpone(op.block(), op.sequence, op.pause, op.waits_for)) pump_.Kick();
      return;
    case Ended::kRetry:
      blocks_.Postpone(op.block(), op.sequence, op.pause, op.waits_for);
      break;
    case Ended::kDeclined:
      waited = blocks_.Decline(op.declined, op.sequence);
      break;
    case Ended::kParked:
      CountGivenUp(op, status);
      waited = blocks_.Park(op.block(), op.sequence);
      break;
    case Ended::kHopeless:  // No failure of this disk, and not tried again.
      if (!op.over_limit) CountGivenUp(op, status);
      waited = blocks_.End(op.block(), op.sequence);
      break;
    case Ended::kCorrupt:
    case Ended::kGone:
      waited = blocks_.End(op.block(), op.sequence);
      break;
  }
  if (waited && *waited > context_.options.disk_flush_after) context_.counters.late_copies.Add();
  context_.progress.Notify();
  pump_.Kick();
}

void WriteBack::CountGivenUp(const Operation& op, const Status& status) {
  if (op.failure.parked_before) return;
  Counters& counters = context_.counters;
  (op.copied.unencodable() ? counters.unencodable_copies : counters.failed_copies).Add();
  unreported_.fetch_add(1, std::memory_order_relaxed);
  const Duration::rep now = context_.clock->Now().time_since_epoch().count();
  Duration::rep due = report_at_.load(std::memory_order_relaxed);
  if (now < due || !report_at_.compare_exchange_strong(due, now + kReportEvery.count())) {
    return;
  }
  log::Warn("blocks_not_written", {{"blocks", log::Num(unreported_.exchange(0))},
                                   {"last_key", op.move.key.Hex()},
                                   {"error", Message(status)}});
}

Status WriteBack::Flush(const FlushRequest& request) {
  if (target_ == nullptr) return OkStatus();
  UnwrittenBlocks::Flush flush;
  blocks_.BeginFlush(&flush, request.last);
  blocks_.Fill(&queue_, /*ignore_pauses=*/true);
  pump_.Kick();
  CAIRN_RETURN_IF_ERROR(blocks_.EndFlush(&flush, request));
  if (!to_persistent_) return OkStatus();
  const TimePoint now = context_.clock->Now();
  // A deadline that has passed lets it look once: what needs no waiting is done.
  const Duration limit = std::max(request.deadline - now, Duration(0));
  return context_.tiers.persistent->Flush(limit, request.cancelled);
}

}  // namespace cairn::cache
