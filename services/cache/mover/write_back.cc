#include "services/cache/mover/write_back.h"

#include "common/log/log.h"
#include "services/cache/block/record.h"
#include "services/cache/mover/transfer.h"

namespace cairn::cache {
namespace {

constexpr TierKind kDisk = TierKind::kDisk;
constexpr TierKind kHost = TierKind::kHost;

Duration PauseAfter(int attempts) { return std::chrono::milliseconds(100) * (1 << (attempts - 1)); }

}  // namespace

struct WriteBack::Operation : Transfer {
  Operation(WriteBack* owner_in, Move move_in)
      : Transfer(&owner_in->context_, std::move(move_in)), owner(owner_in) {}
  ~Operation() { owner->Finish(*this); }

  WriteBack* const owner;
  bool wanted = false;    // The block is still there, and not on disk.
  uint64_t sequence = 0;  // Of its item: a block that was lost and stored again has another.
  std::optional<BlockKey> parent;
  float recompute_seconds = 0;
  bool at_start = false;
  std::vector<PartBuffer> recoded;  // In the order of `parts`; empty: written as it lies in host.
  std::vector<std::string> records;
  // Why its parts could not be encoded again; another attempt will not help.
  std::optional<uint64_t> bad_extent;  // In host: bytes that no encoder wrote.
  bool unencodable = false;            // Numbers that the codec of the disk cannot store.
  // Of a block that is not copied now.
  Duration pause{0};            // It waits for the write budget.
  uint64_t declined_bytes = 0;  // It was turned away.
  uint16_t declined_uses = 0;
};

WriteBack::WriteBack(NodeContext* context, Evictor* evictor)
    : context_(*context),
      evictor_(*evictor),
      admission_({.high_water = context->options.disk_high_water,
                  .bytes_per_second = context->options.disk_write_budget,
                  .patience = context->options.disk_flush_after}),
      queue_({.capacity = context->options.mover_queue_capacity, .max_under_way = 8}),
      pump_(context->executor, [this] { return StartOne(); }) {}

void WriteBack::Add(const NamespacePtr& ns, const BlockKey& key, uint64_t bytes) {
  if (context_.tiers.disk == nullptr) return;
  {
    MutexLock lock(mu_);
    auto [it, added] = items_.try_emplace(Id{ns.get(), key});
    if (!added) {  // It was lost and stored again before its first copy was settled.
      outstanding_.erase(it->second.sequence);
      unflushed_bytes_ -= it->second.bytes;
    }
    it->second = {
        .ns = ns, .sequence = next_sequence_++, .bytes = bytes, .since = context_.clock->Now()};
    outstanding_.insert(it->second.sequence);
    unflushed_bytes_ += bytes;
    line_.emplace_back(ns, key);
  }
  FillQueue(false);
  pump_.Kick();
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
    const bool again = flushing_ == 0 && item != items_.end() && item->second.parked_before;
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
  if (!added) return;  // It was lost and stored again, and is on its way.
  it->second.sequence = next_sequence_++;
  outstanding_.insert(it->second.sequence);
  unflushed_bytes_ += item.bytes;
  line_.emplace_back(item.ns, key);
}

void WriteBack::ReviewDeclined() {
  std::vector<Declined> some;
  {
    MutexLock lock(mu_);
    while (some.size() < kReviewAtOnce && !declined_.empty()) {
      some.push_back(std::move(declined_.front()));
      declined_.pop_front();
    }
  }
  for (Declined& d : some) {
    bool used = false;
    {
      NamespaceLock lock(*d.ns, context_.tiers);
      const auto ref = d.ns->index.FindAlive(d.key);
      if (d.ns->dropped.load(std::memory_order_relaxed) || !ref) continue;
      const BlockMeta& meta = d.ns->index.MetaAt(*ref);
      if (!meta.in(TierKind::kHost) || meta.in(TierKind::kDisk)) continue;
      used = meta.uses > d.uses;
      if (used) d.ns->index.SetDirty(*ref, TierKind::kHost, true);
    }
    MutexLock lock(mu_);
    if (used) {
      PutInLine(d.key, {.ns = d.ns, .bytes = d.bytes, .since = context_.clock->Now()});
    } else {
      declined_.push_back(std::move(d));
    }
  }
}

DiskAdmission::Decision WriteBack::Admit(const Operation& op, const BlockMeta& meta) {
  const TimePoint now = context_.clock->Now();
  DiskAdmission::Candidate c{.bytes = meta.bytes_in(TierKind::kHost)};
  if (const Recoder* const recoder = op.move.ns->recoder.get(); recoder != nullptr) {
    c.bytes = std::min(c.bytes, recoder->MaxBlockBytes((meta.flags & BlockMeta::kAtStart) != 0));
  }
  const TierStats stats = context_.tiers.disk->GetStats();
  c.used_share = static_cast<double>(stats.used_bytes) / static_cast<double>(stats.capacity_bytes);
  c.touched = meta.uses > 0 || context_.gone.Find(op.move.ns->fingerprint, op.move.key) ==
                                   RecentlyGone::Why::kEvicted;
  // A hint counts as a use at the time it names.
  c.hinted = meta.last_use > context_.UseTicksNow();
  MutexLock lock(mu_);
  c.flushed = flushing_ > 0;
  const auto it = items_.find(Id{op.move.ns.get(), op.move.key});
  if (it != items_.end()) c.waited = now - it->second.since;
  return admission_.Decide(c, now);
}

void WriteBack::Decline(const Operation& op) {
  if (declined_.size() >= kMaxDeclined) declined_.pop_front();
  declined_.push_back({op.move.ns, op.move.key, op.declined_bytes, op.declined_uses});
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
  FillQueue(false);
  pump_.Kick();
}

bool WriteBack::StartOne() {
  auto move = queue_.Pop();
  if (!move) {
    FillQueue(false);
    move = queue_.Pop();
  }
  if (!move) return false;
  Begin(std::make_shared<Operation>(this, *std::move(move)));
  return true;
}

void WriteBack::Begin(const std::shared_ptr<Operation>& operation) {
  Operation& op = *operation;
  NamespaceState& ns = *op.move.ns;
  {
    MutexLock lock(mu_);
    const auto it = items_.find(Id{&ns, op.move.key});
    if (it != items_.end()) op.sequence = it->second.sequence;
  }
  {
    NamespaceLock lock(ns, context_.tiers);
    const auto ref = ns.index.FindAlive(op.move.key);
    if (ns.dropped.load(std::memory_order_relaxed) || !ref) return;
    const BlockMeta& meta = ns.index.MetaAt(*ref);
    if (!meta.in(TierKind::kHost) || meta.in(TierKind::kDisk)) return;
    const DiskAdmission::Decision decision = Admit(op, meta);
    if (decision.verdict == DiskAdmission::Verdict::kWait) {
      op.pause = decision.wait;
      return;
    }
    if (decision.verdict != DiskAdmission::Verdict::kCopy) {
      context_.counters.declined_copies[decision.verdict == DiskAdmission::Verdict::kOverBudget]
          .Add();
      op.declined_bytes = meta.bytes_in(TierKind::kHost);
      op.declined_uses = meta.uses;
      ns.index.SetDirty(*ref, TierKind::kHost, false);
      return;
    }
    op.wanted = true;
    op.parts = ns.index.PartsOf(*ref);
    op.pin = ns.index.PinBlock(*ref);
    op.parent = ns.index.ParentOf(*ref);
    op.recompute_seconds = meta.recompute_seconds;
    op.at_start = (meta.flags & BlockMeta::kAtStart) != 0;
  }
  if (Status persisted = Persist(ns); !persisted.ok()) {
    op.Fail(std::move(persisted));
    return;
  }
  if (ns.recoder == nullptr) return Store(operation);
  // A task of its own: promotions, and copies that need no encoding, do not wait for all of them.
  const auto recode_and_store = [this, operation] {
    if (Recode(*operation)) Store(operation);
  };
  if (!context_.executor->Post(recode_and_store).ok()) recode_and_store();
}

bool WriteBack::Recode(Operation& op) {
  const Recoder& recoder = *op.move.ns->recoder;
  for (const PartPlace& part : op.parts) {
    auto recoded =
        recoder.Recode(part.rect, context_.tiers.host->Map(part.In(TierKind::kHost)), op.at_start);
    if (!recoded.ok()) {
      if (recoded.status().code() == StatusCode::kDataLoss) {
        op.bad_extent = part.extent[kHost];
      } else {
        op.unencodable = true;
      }
      op.Fail(recoded.status());
      return false;
    }
    if (!recoded->bytes().empty()) {
      context_.counters.recoded_bytes_in.Add(part.bytes[kHost]);
      context_.counters.recoded_bytes_out.Add(recoded->bytes().size());
    }
    op.recoded.push_back(*std::move(recoded));
  }
  return true;
}

void WriteBack::Store(const std::shared_ptr<Operation>& operation) {
  Operation& op = *operation;
  const NamespaceState& ns = *op.move.ns;
  std::vector<std::span<const std::byte>> sources;
  absl::InlinedVector<uint32_t, 1> lengths;
  for (size_t i = 0; i < op.parts.size(); ++i) {
    const bool recoded = i < op.recoded.size() && !op.recoded[i].bytes().empty();
    sources.push_back(recoded ? op.recoded[i].bytes()
                              : context_.tiers.host->Map(op.parts[i].In(TierKind::kHost)));
    lengths.push_back(static_cast<uint32_t>(sources.back().size()));
  }
  auto room = evictor_.ReserveAll(TierKind::kDisk, lengths);
  if (!room.ok()) {
    op.Fail(room.status());
    return;
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
                                       .recompute_seconds = op.recompute_seconds}));
  }
  for (size_t i = 0; i < op.parts.size(); ++i) {
    context_.tiers.disk->Write(
        op.targets[i], op.records[i], sources[i],
        [operation](Status status) { operation->PartDone(std::move(status)); });
  }
}

void WriteBack::Postpone(const Operation& op) {
  queue_.Done(op.move);
  bool at_once;  // A flush began meanwhile.
  {
    MutexLock lock(mu_);
    at_once = flushing_ > 0;
    postponed_.emplace(context_.clock->Now() + (at_once ? Duration(0) : op.pause),
                       std::pair(op.move.ns, op.move.key));
  }
  if (at_once) pump_.Kick();
}

void WriteBack::Finish(Operation& op) {
  NamespaceState& ns = *op.move.ns;
  if (op.pause > Duration(0)) {
    Postpone(op);
    return;
  }
  const Status status = op.Outcome();
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
    retry = attempts > 0 && attempts < limit && !op.bad_extent && !op.unencodable;
  }
  if (op.wanted) {
    NamespaceLock lock(ns, context_.tiers);
    const auto ref = ns.index.FindAlive(op.move.key);
    const bool there = ref && !ns.dropped.load(std::memory_order_relaxed) &&
                       !ns.index.MetaAt(*ref).in(TierKind::kDisk) &&
                       ns.index.LiesAt(*ref, TierKind::kHost, op.parts);
    if (there && status.ok()) {
      ns.index.AddToTier(*ref, TierKind::kDisk, op.targets);
      context_.Publish(CacheEvent::Kind::kTierAdded, ns, op.move.key, TierKind::kDisk);
      shown = true;
    }
    if (there && !retry) ns.index.SetDirty(*ref, TierKind::kHost, false);
    if (!there) retry = false;
    still_there = there;
    ns.index.Unpin(op.pin, &lock.released);
  }
  if (!shown) evictor_.ReleaseAll(TierKind::kDisk, op.targets);
  if (op.bad_extent) {
    log::Warn("block_corrupt",
              {{"tier", "host"}, {"key", op.move.key.Hex()}, {"error", Message(status)}});
    context_.RemoveCorrupt(ns, op.move.key, TierKind::kHost, *op.bad_extent);
    still_there = false;
  }
  queue_.Done(op.move);
  if (retry) {
    MutexLock lock(mu_);
    // While somebody waits for a flush, there is no sense in waiting for room; a failing disk keeps
    // its pauses.
    const bool at_once = flushing_ > 0 && status.code() == StatusCode::kResourceExhausted;
    const Duration pause = at_once ? Duration(0) : PauseAfter(attempts);
    postponed_.emplace(context_.clock->Now() + pause, std::pair(op.move.ns, op.move.key));
  } else {
    const bool given_up = op.wanted && !status.ok() && !op.bad_extent;
    if (given_up && !parked_before) {
      Counters& counters = context_.counters;
      (op.unencodable ? counters.unencodable_copies : counters.failed_copies).Add();
      log::Warn("block_not_written", {{"key", op.move.key.Hex()}, {"error", Message(status)}});
    }
    if (given_up) {
      MutexLock lock(mu_);
      ++given_up_;
    }
    Settle(op.move, op.sequence, /*park=*/still_there && !status.ok());
    MutexLock lock(mu_);
    if (shown) Unpark(kUnparkAtOnce, kMaxAttempts);
    if (op.declined_bytes > 0) Decline(op);
  }
  context_.progress.Notify();
  pump_.Kick();
}

void WriteBack::Settle(const Move& move, uint64_t sequence, bool park) {
  {
    MutexLock lock(mu_);
    const auto it = items_.find(Id{move.ns.get(), move.key});
    if (it == items_.end()) return;
    if (it->second.sequence != sequence) {
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
    items_.erase(it);
  }
  settled_.NotifyAll();
}

Status WriteBack::Flush(TimePoint deadline) {
  if (context_.tiers.disk == nullptr) return OkStatus();
  uint64_t last, given_up;
  {
    MutexLock lock(mu_);
    Unpark(parked_.size(), 0);
    for (const Declined& d : declined_) {
      PutInLine(d.key, {.ns = d.ns, .bytes = d.bytes, .since = context_.clock->Now()});
    }
    declined_.clear();
    last = next_sequence_ - 1;
    given_up = given_up_;
    ++flushing_;
  }
  FillQueue(/*ignore_pauses=*/true);
  pump_.Kick();
  {
    MutexLock lock(mu_);
    const bool done =
        settled_.WaitUntil(mu_, deadline, [this, last]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return outstanding_.empty() || *outstanding_.begin() > last;
        });
    --flushing_;
    if (!done) {
      return Errorf(StatusCode::kDeadlineExceeded, "flush: {} bytes are not on disk yet",
                    unflushed_bytes_);
    }
    if (given_up_ != given_up) {
      return Errorf(StatusCode::kUnavailable, "flush: {} blocks could not be written to disk",
                    given_up_ - given_up);
    }
  }
  return context_.tiers.disk->Flush();
}

// A block must never be on disk before the record of its namespace: recovery would not know what it
// is.
Status WriteBack::Persist(NamespaceState& ns) {
  if (ns.persisted.load(std::memory_order_acquire)) return OkStatus();
  MutexLock lock(context_.meta_mu);
  if (ns.dropped.load(std::memory_order_acquire)) {
    return Errorf(StatusCode::kNotFound, "namespace was dropped");
  }
  CAIRN_RETURN_IF_ERROR(context_.tiers.disk->PutMeta(
      NamespaceMetaName(ns.fingerprint),
      EncodeNamespaceRecord({.spec = ns.spec, .generation = ns.generation, .dropped = false})));
  ns.persisted.store(true, std::memory_order_release);
  return OkStatus();
}

uint64_t WriteBack::unflushed_bytes() const {
  MutexLock lock(mu_);
  return unflushed_bytes_;
}

size_t WriteBack::depth() const {
  size_t waiting = queue_.depth();
  MutexLock lock(mu_);
  return waiting + line_.size() + postponed_.size();
}

}  // namespace cairn::cache
