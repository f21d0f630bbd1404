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

  WriteBack* const owner;
  bool wanted = false;    // The block is still there, and not in the target.
  uint64_t sequence = 0;  // Of its item: a block that was lost and stored again has another.
  std::optional<BlockKey> parent;
  float recompute_seconds = 0;
  int64_t used_at = 0;  // Seconds since 1970.
  bool at_start = false;
  CopiedParts copied;
  std::vector<std::string> records;
  // In the source, of bytes that no encoder wrote.
  std::optional<uint64_t> bad_extent;
  bool too_large = false;  // For the target: another attempt will not help.
  MemoryCharge memory;     // For `copied`.
  // Of a block that is not copied now.
  Duration pause{0};  // It waits for the write budget, or for memory.
  bool wants_memory = false;
  uint64_t declined_bytes = 0;  // It was turned away.
  uint64_t declined_room = 0;
  uint16_t declined_uses = 0;
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
      pump_(context->executor, [this] { return StartOne(); }) {}

void WriteBack::Add(const NamespacePtr& ns, const BlockKey& key, uint64_t bytes, uint64_t room) {
  if (target_ == nullptr) return;
  const auto [share, room_bytes] = ShareOf(*ns, room);
  bool crowded;
  {
    MutexLock lock(mu_);
    auto [it, added] = items_.try_emplace(Id{ns.get(), key});
    if (!added) {  // It was lost and stored again before its first copy was settled.
      outstanding_.erase(it->second.sequence);
      unflushed_bytes_ -= it->second.bytes;
      shares_.GiveBack(it->second.share, ns->spec.tenant);
    }
    crowded = !shares_.Take(share, ns->spec.tenant, room_bytes);
    if (crowded) {
      items_.erase(it);
    } else {
      it->second = {.ns = ns,
                    .sequence = next_sequence_++,
                    .bytes = bytes,
                    .since = context_.clock->Now(),
                    .share = share};
      outstanding_.insert(it->second.sequence);
      unflushed_bytes_ += bytes;
      line_.emplace_back(ns, key);
      if (stalled_) stalled_blocks_.emplace_back(ns, key);
    }
  }
  if (crowded) TurnAway(ns, key, bytes, room);
  FillQueue(false);
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
  MutexLock lock(mu_);
  Decline({ns, key, bytes, uses, room, /*crowded=*/true});
}

void WriteBack::FillQueue(bool ignore_pauses) {
  const TimePoint now = context_.clock->Now();
  MutexLock lock(mu_);
  while (!postponed_.empty() && (ignore_pauses || postponed_.begin()->first <= now)) {
    line_.push_back(postponed_.begin()->second);
    postponed_.erase(postponed_.begin());
  }
  while (!line_.empty()) {
    const auto& [ns, key] = line_.front();
    const auto item = items_.find(Id{ns.get(), key});
    // While somebody waits for a flush, no copy can wait for others.
    const bool again = flushes_.empty() && item != items_.end() && item->second.parked_before;
    const uint64_t bytes = item == items_.end() ? 0 : item->second.bytes;
    if (queue_.Push(ns, {key, bytes}, again ? MovePriority::kRebalance : MovePriority::kWriteBack,
                    {}, /*anyway=*/true) == MoveQueue::Pushed::kFull) {
      return;
    }
    line_.pop_front();
  }
}

void WriteBack::Unpark(size_t max, int attempts) {
  for (; max > 0 && !parked_.empty(); --max) {
    const Parked parked = std::move(parked_.front());
    parked_.pop_front();
    PutInLine(parked.key, {.ns = parked.ns,
                           .bytes = parked.bytes,
                           .attempts = attempts,
                           .parked_before = true,
                           .since = context_.clock->Now()});
  }
}

void WriteBack::PutInLine(const BlockKey& key, const Item& item) {
  auto [it, added] = items_.try_emplace(Id{item.ns.get(), key}, item);
  if (!added) {  // It was lost and stored again, and is on its way.
    shares_.GiveBack(item.share, item.ns->spec.tenant);
    return;
  }
  it->second.sequence = next_sequence_++;
  outstanding_.insert(it->second.sequence);
  unflushed_bytes_ += item.bytes;
  line_.emplace_back(item.ns, key);
}

void WriteBack::ReviewDeclined() {
  MutexLock review(review_mu_);
  std::vector<Declined> some;
  {
    MutexLock lock(mu_);
    while (some.size() < kReviewAtOnce && !declined_.empty()) {
      some.push_back(std::move(declined_.front()));
      declined_.pop_front();
    }
  }
  for (Declined& d : some) {
    const auto [share, room_bytes] = ShareOf(*d.ns, d.room);
    bool taken;
    {
      MutexLock lock(mu_);
      taken = shares_.Take(share, d.ns->spec.tenant, room_bytes);
    }
    bool here = false, wanted = false;
    {
      NamespaceLock lock(*d.ns, context_.tiers);
      const auto ref = d.ns->index.FindAlive(d.key);
      here = !d.ns->dropped.load(std::memory_order_relaxed) && ref &&
             d.ns->index.MetaAt(*ref).in(route_.source) &&
             !d.ns->index.MetaAt(*ref).in(route_.target);
      wanted = here && taken && (d.crowded || d.ns->index.MetaAt(*ref).uses > d.uses);
      if (wanted) d.ns->index.SetDirty(*ref, route_.source, true);
    }
    MutexLock lock(mu_);
    if (wanted) {
      PutInLine(d.key,
                {.ns = d.ns, .bytes = d.bytes, .since = context_.clock->Now(), .share = share});
      continue;
    }
    if (taken) shares_.GiveBack(share, d.ns->spec.tenant);
    if (here) declined_.push_back(std::move(d));
  }
}

DiskAdmission::Decision WriteBack::Admit(const Operation& op, const BlockMeta& meta) {
  const TimePoint now = context_.clock->Now();
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
  MutexLock lock(mu_);
  const auto it = items_.find(Id{op.move.ns.get(), op.move.key});
  if (it != items_.end()) {
    c.waited = now - it->second.since;
    c.flushed = Covered(it->second.sequence);
    c.unlimited = Lifted(it->second.sequence);
  }
  return admission_.Decide(c, now);
}

bool WriteBack::Covered(uint64_t sequence) const {
  return std::any_of(flushes_.begin(), flushes_.end(),
                     [sequence](const Waiting* w) { return sequence <= w->last; });
}

bool WriteBack::Lifted(uint64_t sequence) const {
  return std::any_of(flushes_.begin(), flushes_.end(), [sequence](const Waiting* w) {
    return w->lifts_limits && sequence <= w->last;
  });
}

void WriteBack::Decline(const Declined& declined) {
  if (declined_.size() >= kMaxDeclined) declined_.pop_front();
  declined_.push_back(declined);
}

void WriteBack::Tick() {
  {
    MutexLock lock(mu_);
    if (const TimePoint now = context_.clock->Now(); !parked_.empty() && now >= next_probe_) {
      next_probe_ = now + kProbeEvery;
      Unpark(1, kMaxAttempts);
    }
  }
  ReviewDeclined();
  ReleaseStalled();
  FillQueue(false);
  pump_.Kick();
  settled_.NotifyAll();  // Who waits asks whether it was cancelled.
}

void WriteBack::ReleaseStalled() {
  std::vector<std::pair<NamespacePtr, BlockKey>> some;
  {
    MutexLock lock(mu_);
    const bool stalled =
        queue_.under_way() > 0 && context_.clock->Now() - last_step_ > kStalledAfter;
    if (!stalled) {
      stalled_ = false;
      stalled_blocks_.clear();
      return;
    }
    if (!stalled_) {
      stalled_ = true;
      context_.counters.copy_stalls.Add();
      for (const auto& [id, item] : items_) stalled_blocks_.emplace_back(item.ns, id.second);
      log::Warn("copies_stalled",
                {{"tier", std::string(Name(route_.target))}, {"blocks", log::Num(items_.size())}});
    }
    while (some.size() < kReviewAtOnce && !stalled_blocks_.empty()) {
      some.push_back(std::move(stalled_blocks_.front()));
      stalled_blocks_.pop_front();
    }
  }
  for (const auto& [ns, key] : some) {
    NamespaceLock lock(*ns, context_.tiers);
    const auto ref = ns->index.FindAlive(key);
    if (ref && ns->index.MetaAt(*ref).in(route_.source))
      ns->index.SetDirty(*ref, route_.source, false);
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
  return memory_.Take(Id{op.move.ns.get(), op.move.key}, bytes, &op.memory);
}

bool WriteBack::StartOne() {
  auto move = queue_.Pop();
  if (!move) {
    FillQueue(false);
    move = queue_.Pop();
  }
  if (!move) return false;
  const auto operation = std::make_shared<Operation>(this, *std::move(move));
  const Status status = Begin(*operation);
  if (status.ok()) {
    Transfer::Load(operation);
  } else {
    Transfer::Stop(operation, status);
  }
  return true;
}

Status WriteBack::Begin(Operation& op) {
  const Status not_now = Errorf(StatusCode::kCancelled, "the block is not copied now");
  NamespaceState& ns = *op.move.ns;
  {
    MutexLock lock(mu_);
    last_step_ = context_.clock->Now();
    const auto it = items_.find(Id{&ns, op.move.key});
    if (it != items_.end()) {
      op.sequence = it->second.sequence;
      op.declined_room = it->second.share.bytes;
    }
  }
  {
    NamespaceLock lock(ns, context_.tiers);
    const auto ref = ns.index.FindAlive(op.move.key);
    if (ns.dropped.load(std::memory_order_relaxed) || !ref) return not_now;
    const BlockMeta& meta = ns.index.MetaAt(*ref);
    if (!meta.in(route_.source) || meta.in(route_.target)) return not_now;
    op.parts = ns.index.PartsOf(*ref);
    op.at_start = (meta.flags & BlockMeta::kAtStart) != 0;
    // First of all: who waits for memory must not use up the write budget.
    if (!TakeMemory(op, meta)) {
      op.wants_memory = true;
      op.pause = kCopyPause;
      return not_now;
    }
    const DiskAdmission::Decision decision = Admit(op, meta);
    if (decision.verdict == DiskAdmission::Verdict::kWait) {
      op.pause = decision.wait;
      return not_now;
    }
    if (decision.verdict != DiskAdmission::Verdict::kCopy) {
      Counters& counters = context_.counters;
      (decision.verdict == DiskAdmission::Verdict::kOverBudget ? counters.over_budget_copies
                                                               : counters.untouched_copies)
          .Add();
      op.declined_bytes = meta.bytes_in(route_.source);
      op.declined_uses = meta.uses;
      ns.index.SetDirty(*ref, route_.source, false);
      return not_now;
    }
    op.wanted = true;
    op.pin = ns.index.PinBlock(*ref);
    op.parent = ns.index.ParentOf(*ref);
    op.recompute_seconds = meta.recompute_seconds;
    op.used_at = context_.UnixSecondsOf(meta.last_use);
  }
  return to_persistent_ ? PersistNamespace(context_, ns) : OkStatus();
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
  auto room =
      evictor_.ReserveAll(route_.target, lengths, 0, {}, evictor_.RoomOf(ns, route_.target));
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

void WriteBack::Postpone(const Operation& op) {
  queue_.Done(op.move);
  bool at_once;  // The last flush began meanwhile.
  {
    MutexLock lock(mu_);
    // Room for a copy comes with time only.
    at_once = Lifted(op.sequence) && !op.wants_memory;
    postponed_.emplace(context_.clock->Now() + (at_once ? Duration(0) : op.pause),
                       std::pair(op.move.ns, op.move.key));
  }
  if (at_once) pump_.Kick();
}

void WriteBack::Finish(Operation& op) {
  NamespaceState& ns = *op.move.ns;
  // Before others take it: the buffers are gone then.
  op.copied.Clear();
  memory_.GiveBack(&op.memory);
  if (op.pause > Duration(0)) {
    Postpone(op);
    return;
  }
  {
    MutexLock lock(mu_);
    last_step_ = context_.clock->Now();
  }
  const Status status = op.Outcome();
  const bool lost =
      status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kNotFound;
  op.bad_extent = op.copied.bad_extent();
  if (lost && !op.parts.empty() && !op.loaded()) op.bad_extent = op.parts[0].extent[route_.source];
  bool shown = false;
  bool still_there = false;
  bool retry = false;
  bool parked_before = false;
  int attempts = 0;
  if (op.wanted && !status.ok()) {
    MutexLock lock(mu_);
    const auto it = items_.find(Id{&ns, op.move.key});
    if (it != items_.end() && it->second.sequence == op.sequence) {
      attempts = ++it->second.attempts;
      parked_before = it->second.parked_before;
    }
    const int limit =
        status.code() == StatusCode::kResourceExhausted ? kMaxAttemptsForRoom : kMaxAttempts;
    retry = attempts > 0 && attempts < limit && !op.bad_extent && !op.copied.unencodable() &&
            !op.too_large;
  }
  if (op.wanted) {
    NamespaceLock lock(ns, context_.tiers);
    const auto ref = ns.index.FindAlive(op.move.key);
    const bool there = ref && !ns.dropped.load(std::memory_order_relaxed) &&
                       !ns.index.MetaAt(*ref).in(route_.target) &&
                       ns.index.LiesAt(*ref, route_.source, op.parts);
    if (there && status.ok()) {
      ns.index.AddToTier(*ref, route_.target, op.targets);
      context_.Publish(CacheEvent::Kind::kTierAdded, ns, op.move.key, route_.target);
      shown = true;
    }
    if (there && !retry) ns.index.SetDirty(*ref, route_.source, false);
    if (!there) retry = false;
    still_there = there;
    ns.index.Unpin(op.pin, &lock.released);
  }
  if (!shown) evictor_.ReleaseAll(route_.target, op.targets);
  if (op.bad_extent) {
    log::Warn("block_corrupt", {{"tier", std::string(Name(route_.source))},
                                {"key", op.move.key.Hex()},
                                {"error", Message(status)}});
    context_.RemoveCorrupt(ns, op.move.key, route_.source, *op.bad_extent);
    still_there = false;
  }
  queue_.Done(op.move);
  if (retry) {
    TryAgain(op, status, attempts);
  } else {
    Conclude(op, status, /*shown=*/shown, /*still_there=*/still_there, parked_before);
  }
  context_.progress.Notify();
  pump_.Kick();
}

void WriteBack::TryAgain(const Operation& op, const Status& status, int attempts) {
  MutexLock lock(mu_);
  // While somebody waits for a flush, there is no sense in waiting for room; a failing disk keeps
  // its pauses.
  const bool at_once = Covered(op.sequence) && status.code() == StatusCode::kResourceExhausted;
  const Duration pause = at_once ? Duration(0) : PauseAfter(attempts);
  postponed_.emplace(context_.clock->Now() + pause, std::pair(op.move.ns, op.move.key));
}

void WriteBack::Conclude(const Operation& op, const Status& status, bool shown, bool still_there,
                         bool parked_before) {
  const bool given_up = op.wanted && !status.ok() && !op.bad_extent;
  if (given_up && !parked_before) {
    Counters& counters = context_.counters;
    (op.copied.unencodable() ? counters.unencodable_copies : counters.failed_copies).Add();
    log::Warn("block_not_written", {{"key", op.move.key.Hex()}, {"error", Message(status)}});
  }
  // What no disk could take is no failure of this one, and is not tried again.
  const bool hopeless = op.copied.unencodable() || op.too_large;
  if (given_up && !hopeless) {
    MutexLock lock(mu_);
    for (Waiting* const waiting : flushes_) {
      if (op.sequence <= waiting->last) ++waiting->failed;
    }
  }
  Settle(op, /*park=*/still_there && !status.ok() && !hopeless);
  if (!shown) return;
  MutexLock lock(mu_);
  Unpark(kUnparkAtOnce, kMaxAttempts);
}

void WriteBack::Settle(const Operation& op, bool park) {
  const Move& move = op.move;
  {
    MutexLock lock(mu_);
    const auto it = items_.find(Id{move.ns.get(), move.key});
    if (op.declined_bytes > 0) {
      // It was turned away before a flush began that waits for it: the flush must not end without
      // it. A block that a flush waits for is not turned away again.
      if (it != items_.end() && it->second.sequence == op.sequence && Covered(op.sequence)) {
        line_.emplace_back(move.ns, move.key);
        return;
      }
      // In one step with the end of the item, so that a flush sees the block in one of both places.
      Decline({move.ns, move.key, op.declined_bytes, op.declined_uses, op.declined_room});
    }
    if (it == items_.end()) return;
    if (it->second.sequence != op.sequence) {
      line_.emplace_back(move.ns, move.key);
      return;
    }
    outstanding_.erase(it->second.sequence);
    unflushed_bytes_ -= it->second.bytes;
    if (context_.clock->Now() - it->second.since > context_.options.disk_flush_after) {
      context_.counters.late_copies.Add();
    }
    if (park) {
      if (parked_.size() >= kMaxParked) parked_.pop_front();
      parked_.push_back({move.ns, move.key, it->second.bytes});
    }
    shares_.GiveBack(it->second.share, it->second.ns->spec.tenant);
    items_.erase(it);
  }
  settled_.NotifyAll();
}

Status WriteBack::Flush(const FlushRequest& request) {
  if (target_ == nullptr) return OkStatus();
  Waiting waiting{.lifts_limits = request.last};
  {
    MutexLock review(review_mu_);
    MutexLock lock(mu_);
    Unpark(parked_.size(), 0);
    for (const Declined& d : declined_) {
      PutInLine(d.key, {.ns = d.ns, .bytes = d.bytes, .since = context_.clock->Now()});
    }
    declined_.clear();
    waiting.last = next_sequence_ - 1;
    flushes_.push_back(&waiting);
  }
  FillQueue(/*ignore_pauses=*/true);
  pump_.Kick();
  const auto cancelled = [&request] { return request.cancelled && request.cancelled(); };
  {
    MutexLock lock(mu_);
    const auto done = [this, last = waiting.last]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return outstanding_.empty() || *outstanding_.begin() > last;
    };
    settled_.WaitUntil(mu_, *context_.clock, request.deadline,
                       [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return done() || cancelled(); });
    std::erase(flushes_, &waiting);
    if (!done()) {
      if (cancelled()) return Errorf(StatusCode::kCancelled, "flush: the caller gave up");
      return Errorf(StatusCode::kDeadlineExceeded, "flush: {} bytes are not on disk yet",
                    unflushed_bytes_);
    }
  }
  if (waiting.failed > 0) {
    return Errorf(StatusCode::kUnavailable, "flush: {} blocks could not be written to disk",
                  waiting.failed);
  }
  if (!to_persistent_) return OkStatus();
  const TimePoint now = context_.clock->Now();
  // A deadline that has passed lets it look once: what needs no waiting is done.
  const Duration limit = std::max(request.deadline - now, Duration(0));
  return context_.tiers.persistent->Flush(limit, request.cancelled);
}

}  // namespace cairn::cache
