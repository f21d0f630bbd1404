#include "services/cache/mover/write_back.h"

#include "services/cache/block/record.h"
#include "services/common/log/log.h"

namespace cairn::cache {
namespace {

constexpr size_t kDisk = static_cast<size_t>(TierKind::kDisk);
constexpr size_t kHost = static_cast<size_t>(TierKind::kHost);

Duration PauseAfter(int attempts) { return std::chrono::milliseconds(100) * (1 << (attempts - 1)); }

}  // namespace

// One block on its way; ends like a promotion's.
struct WriteBack::Operation {
  Operation(WriteBack* owner_in, Move move_in)
      : owner(owner_in), move(std::move(move_in)), token(&owner_in->context_.in_flight) {}
  ~Operation() { owner->Finish(*this); }

  void Done(Status result) {
    if (result.ok()) return;
    MutexLock lock(mu);
    if (status.ok()) status = std::move(result);
  }

  WriteBack* const owner;
  const Move move;
  InFlight::Token token;
  bool wanted = false;    // The block is still there, and not on disk.
  uint64_t sequence = 0;  // Of its item: a block that was lost and stored again has another.
  PinId pin = kNoPin;
  PartPlaces parts;
  absl::InlinedVector<uint64_t, 1> disk_ids;
  std::vector<std::string> records;
  std::atomic<size_t> writes_done{0};
  Mutex mu;
  Status status ABSL_GUARDED_BY(mu);
};

WriteBack::WriteBack(NodeContext* context, Evictor* evictor)
    : context_(*context),
      evictor_(*evictor),
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
    it->second = {.ns = ns, .sequence = next_sequence_++, .bytes = bytes};
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
    if (queue_.Push(ns, key, MovePriority::kWriteBack, {}, /*anyway=*/true) ==
        MoveQueue::Pushed::kFull) {
      return;
    }
    line_.pop_front();
  }
}

void WriteBack::Unpark(size_t max, int attempts) {
  for (; max > 0 && !parked_.empty(); --max) {
    const Parked parked = std::move(parked_.front());
    parked_.pop_front();
    auto [it, added] = items_.try_emplace(Id{parked.ns.get(), parked.key});
    if (!added) continue;  // It was lost and stored again, and is on its way.
    it->second = {parked.ns, next_sequence_++, parked.bytes, attempts, true};
    outstanding_.insert(it->second.sequence);
    unflushed_bytes_ += parked.bytes;
    line_.emplace_back(parked.ns, parked.key);
  }
}

void WriteBack::Tick() {
  {
    MutexLock lock(mu_);
    if (const TimePoint now = context_.clock->Now(); !parked_.empty() && now >= next_probe_) {
      next_probe_ = now + kProbeEvery;
      Unpark(1, kMaxAttempts);
    }
  }
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
  std::optional<BlockKey> parent;
  float recompute_seconds = 0;
  {
    NamespaceLock lock(ns, context_.tiers);
    const auto ref = ns.index.FindAlive(op.move.key);
    if (ns.dropped.load(std::memory_order_relaxed) || !ref) return;
    const BlockMeta& meta = ns.index.MetaAt(*ref);
    if (!meta.in(TierKind::kHost) || meta.in(TierKind::kDisk)) return;
    op.wanted = true;
    op.parts = ns.index.PartsOf(*ref);
    op.pin = ns.index.PinBlock(*ref);
    parent = ns.index.ParentOf(*ref);
    recompute_seconds = meta.recompute_seconds;
  }
  if (Status persisted = Persist(ns); !persisted.ok()) {
    op.Done(std::move(persisted));
    return;
  }
  auto room = evictor_.ReserveAll(TierKind::kDisk, op.parts);
  if (!room.ok()) {
    op.Done(room.status());
    return;
  }
  op.disk_ids = *std::move(room);
  for (const PartPlace& part : op.parts) {
    op.records.push_back(EncodeRecord({.fingerprint = ns.fingerprint,
                                       .generation = ns.generation,
                                       .key = op.move.key,
                                       .parent = parent,
                                       .rect = part.rect,
                                       .grid = ns.whole,
                                       .bytes = part.bytes,
                                       .recompute_seconds = recompute_seconds}));
  }
  for (size_t i = 0; i < op.parts.size(); ++i) {
    const PartPlace& part = op.parts[i];
    const auto source = context_.tiers.host->Map({part.extent[kHost], part.bytes});
    context_.tiers.disk->Write({op.disk_ids[i], part.bytes}, op.records[i], source,
                               [operation](Status status) {
                                 operation->writes_done.fetch_add(1);
                                 operation->Done(std::move(status));
                               });
  }
}

void WriteBack::Finish(Operation& op) {
  NamespaceState& ns = *op.move.ns;
  Status status;
  {
    MutexLock lock(op.mu);
    status = op.status;
  }
  if (op.wanted && status.ok() && op.writes_done.load() != op.parts.size()) {
    status = Errorf(StatusCode::kCancelled, "the disk tier went away");
  }
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
    retry = attempts > 0 && attempts < limit;
  }
  if (op.wanted) {
    NamespaceLock lock(ns, context_.tiers);
    const auto ref = ns.index.FindAlive(op.move.key);
    const bool there = ref && !ns.dropped.load(std::memory_order_relaxed) &&
                       !ns.index.MetaAt(*ref).in(TierKind::kDisk) &&
                       ns.index.LiesAt(*ref, TierKind::kHost, op.parts);
    if (there && status.ok()) {
      ns.index.AddToTier(*ref, TierKind::kDisk, op.disk_ids);
      context_.Publish(CacheEvent::Kind::kTierAdded, ns, op.move.key, TierKind::kDisk);
      shown = true;
    }
    if (there && !retry) ns.index.SetDirty(*ref, false);
    if (!there) retry = false;
    still_there = there;
    ns.index.Unpin(op.pin, &lock.released);
  }
  if (!shown) evictor_.ReleaseAll(TierKind::kDisk, op.parts, op.disk_ids);
  queue_.Done(op.move);
  if (retry) {
    MutexLock lock(mu_);
    // While somebody waits for a flush, there is no sense in waiting for room; a failing disk keeps
    // its pauses.
    const bool at_once = flushing_ > 0 && status.code() == StatusCode::kResourceExhausted;
    const Duration pause = at_once ? Duration(0) : PauseAfter(attempts);
    postponed_.emplace(context_.clock->Now() + pause, std::pair(op.move.ns, op.move.key));
  } else {
    if (op.wanted && !status.ok() && !parked_before) {
      context_.counters.failed_copies.Add();
      log::Warn("block_not_written", {{"key", op.move.key.Hex()}, {"error", Message(status)}});
    }
    if (op.wanted && !status.ok()) {
      MutexLock lock(mu_);
      ++given_up_;
    }
    Settle(op.move, op.sequence, /*park=*/still_there && !status.ok());
    if (shown) {
      MutexLock lock(mu_);
      Unpark(kUnparkAtOnce, kMaxAttempts);
    }
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
