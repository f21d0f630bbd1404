#include "services/cache/store/mover/unwritten_blocks.h"

#include <algorithm>

namespace cairn::cache {

bool UnwrittenBlocks::Add(const NamedBlock& block, uint64_t bytes,
                          const WaitingShares::Share& share, uint64_t room_bytes) {
  MutexLock lock(mu_);
  const std::string& tenant = block.ns->spec.tenant;
  const auto [it, added] = items_.try_emplace(IdOf(block));
  // Else it was lost and stored again before its first copy ended.
  if (!added) Uncount(it->second);
  if (!shares_.Take(share, tenant, room_bytes)) {
    items_.erase(it);
    return false;
  }
  it->second = {.ns = block.ns,
                .sequence = next_sequence_++,
                .bytes = bytes,
                .since = clock_.Now(),
                .share = share};
  outstanding_.insert(it->second.sequence);
  bytes_ += bytes;
  line_.push_back(block);
  if (stalled_) stalled_blocks_.push_back(block);
  return true;
}

void UnwrittenBlocks::Fill(MoveQueue* queue, bool ignore_pauses) {
  const TimePoint now = clock_.Now();
  MutexLock lock(mu_);
  while (!postponed_.empty() && (ignore_pauses || postponed_.begin()->first <= now)) {
    line_.push_back(postponed_.begin()->second);
    postponed_.erase(postponed_.begin());
  }
  while (!line_.empty()) {
    const auto& [ns, key] = line_.front();
    const auto item = items_.find(IdOf(line_.front()));
    // While somebody waits for a flush, no copy can wait for others.
    const bool again = flushes_.empty() && item != items_.end() && item->second.parked_before;
    const uint64_t bytes = item == items_.end() ? 0 : item->second.bytes;
    if (queue->Push(ns, {key, bytes}, again ? MovePriority::kRebalance : MovePriority::kWriteBack,
                    {}, /*anyway=*/true) == MoveQueue::Pushed::kFull) {
      return;
    }
    line_.pop_front();
  }
}

UnwrittenBlocks::Known UnwrittenBlocks::Begin(const NamedBlock& block) {
  const TimePoint now = clock_.Now();
  MutexLock lock(mu_);
  last_step_ = now;
  const auto it = items_.find(IdOf(block));
  if (it == items_.end()) return {};
  const Item& item = it->second;
  return {.sequence = item.sequence,
          .room = item.share.bytes,
          .waited = now - item.since,
          .flushed = Covered(item.sequence),
          .unlimited = Lifted(item.sequence)};
}

UnwrittenBlocks::Failure UnwrittenBlocks::Fail(const NamedBlock& block, uint64_t sequence,
                                               bool for_room) {
  MutexLock lock(mu_);
  last_step_ = clock_.Now();
  const auto it = items_.find(IdOf(block));
  if (it == items_.end() || it->second.sequence != sequence) return {};
  Item& item = it->second;
  ++item.attempts;
  return {.attempts = item.attempts,
          .again = item.attempts < (for_room ? kMaxAttemptsForRoom : kMaxAttempts),
          .parked_before = item.parked_before};
}

void UnwrittenBlocks::Uncount(const Item& item) {
  outstanding_.erase(item.sequence);
  bytes_ -= item.bytes;
  shares_.GiveBack(item.share, item.ns->spec.tenant);
}

std::optional<UnwrittenBlocks::Item> UnwrittenBlocks::TakeItem(const NamedBlock& block,
                                                               uint64_t sequence) {
  last_step_ = clock_.Now();
  const auto it = items_.find(IdOf(block));
  if (it == items_.end()) return std::nullopt;
  if (it->second.sequence != sequence) {
    line_.push_back(block);
    return std::nullopt;
  }
  Uncount(it->second);
  std::optional<Item> item = std::move(it->second);
  items_.erase(it);
  settled_.NotifyAll();
  return item;
}

UnwrittenBlocks::Waited UnwrittenBlocks::End(const NamedBlock& block, uint64_t sequence) {
  MutexLock lock(mu_);
  const auto item = TakeItem(block, sequence);
  if (!item) return std::nullopt;
  return clock_.Now() - item->since;
}

UnwrittenBlocks::Waited UnwrittenBlocks::Decline(const DeclinedBlock& block, uint64_t sequence) {
  MutexLock lock(mu_);
  const NamedBlock name{block.ns, block.key};
  const auto it = items_.find(IdOf(name));
  if (it != items_.end() && it->second.sequence == sequence && Covered(sequence)) {
    last_step_ = clock_.Now();
    line_.push_back(name);
    return std::nullopt;
  }
  // In one step with the end of the item, so that a flush sees the block in one of both places.
  declined_.Add(block);
  const auto item = TakeItem(name, sequence);
  if (!item) return std::nullopt;
  return clock_.Now() - item->since;
}

UnwrittenBlocks::Waited UnwrittenBlocks::Park(const NamedBlock& block, uint64_t sequence) {
  MutexLock lock(mu_);
  for (Flush* const flush : flushes_) {
    if (sequence <= flush->last) ++flush->failed;
  }
  const auto item = TakeItem(block, sequence);
  if (!item) return std::nullopt;
  if (parked_.size() >= kMaxParked) parked_.pop_front();
  parked_.push_back({block, item->bytes});
  return clock_.Now() - item->since;
}

bool UnwrittenBlocks::Postpone(const NamedBlock& block, uint64_t sequence, Duration pause,
                               Wait why) {
  MutexLock lock(mu_);
  const bool at_once =
      (why == Wait::kBudget && Lifted(sequence)) || (why == Wait::kRoom && Covered(sequence));
  postponed_.emplace(clock_.Now() + (at_once ? Duration(0) : pause), block);
  return at_once;
}

void UnwrittenBlocks::AddDeclined(DeclinedBlock block) {
  MutexLock lock(mu_);
  declined_.Add(std::move(block));
}

std::vector<std::pair<DeclinedBlocks::Number, DeclinedBlock>> UnwrittenBlocks::DeclinedToReview() {
  MutexLock lock(mu_);
  return declined_.Some(kAtOnce);
}

bool UnwrittenBlocks::TakeShare(const NamespaceState& ns, const WaitingShares::Share& share,
                                uint64_t room_bytes) {
  MutexLock lock(mu_);
  return shares_.Take(share, ns.spec.tenant, room_bytes);
}

void UnwrittenBlocks::EndReview(DeclinedBlocks::Number number, const NamespaceState& ns,
                                Review review, const WaitingShares::Share& share) {
  MutexLock lock(mu_);
  std::optional<DeclinedBlock> block;
  if (review != Review::kStays) block = declined_.Take(number);
  if (review == Review::kPutInLine && block) {
    PutInLine(block->key,
              {.ns = block->ns, .bytes = block->bytes, .since = clock_.Now(), .share = share});
  } else {  // Among these, one that a flush has put in line meanwhile.
    shares_.GiveBack(share, ns.spec.tenant);
  }
}

void UnwrittenBlocks::PutInLine(const BlockKey& key, const Item& item) {
  const auto [it, added] = items_.try_emplace(Id{item.ns.get(), key}, item);
  if (!added) {
    shares_.GiveBack(item.share, item.ns->spec.tenant);
    return;
  }
  it->second.sequence = next_sequence_++;
  outstanding_.insert(it->second.sequence);
  bytes_ += item.bytes;
  line_.push_back({item.ns, key});
}

void UnwrittenBlocks::UnparkSome(size_t max, int attempts) {
  for (; max > 0 && !parked_.empty(); --max) {
    const Parked parked = std::move(parked_.front());
    parked_.pop_front();
    PutInLine(parked.block.key, {.ns = parked.block.ns,
                                 .bytes = parked.bytes,
                                 .attempts = attempts,
                                 .parked_before = true,
                                 .since = clock_.Now()});
  }
}

void UnwrittenBlocks::Unpark() {
  MutexLock lock(mu_);
  UnparkSome(kUnparkAtOnce, kMaxAttempts);
}

void UnwrittenBlocks::ProbeParked() {
  const TimePoint now = clock_.Now();
  MutexLock lock(mu_);
  if (parked_.empty() || now < next_probe_) return;
  next_probe_ = now + kProbeEvery;
  UnparkSome(1, kMaxAttempts);
}

UnwrittenBlocks::Stall UnwrittenBlocks::LookForStall(bool under_way) {
  const TimePoint now = clock_.Now();
  Stall stall;
  MutexLock lock(mu_);
  if (!under_way || now - last_step_ <= kStalledAfter) {
    stalled_ = false;
    stalled_blocks_.clear();
    return stall;
  }
  stall.blocks = items_.size();
  if (!stalled_) {
    stalled_ = stall.began = true;
    for (const auto& [id, item] : items_) stalled_blocks_.push_back({item.ns, id.second});
  }
  while (stall.release.size() < kAtOnce && !stalled_blocks_.empty()) {
    stall.release.push_back(std::move(stalled_blocks_.front()));
    stalled_blocks_.pop_front();
  }
  return stall;
}

bool UnwrittenBlocks::Covered(uint64_t sequence) const {
  return std::ranges::any_of(flushes_,
                             [sequence](const Flush* flush) { return sequence <= flush->last; });
}

bool UnwrittenBlocks::Lifted(uint64_t sequence) const {
  return std::ranges::any_of(flushes_, [sequence](const Flush* flush) {
    return flush->lifts_limits && sequence <= flush->last;
  });
}

void UnwrittenBlocks::BeginFlush(Flush* flush, bool last) {
  MutexLock lock(mu_);
  UnparkSome(parked_.size(), 0);
  for (const DeclinedBlock& block : declined_.TakeAll()) {
    PutInLine(block.key, {.ns = block.ns, .bytes = block.bytes, .since = clock_.Now()});
  }
  flush->lifts_limits = last;
  flush->last = next_sequence_ - 1;
  flushes_.push_back(flush);
}

Status UnwrittenBlocks::EndFlush(Flush* flush, const FlushRequest& request) {
  const auto cancelled = [&request] { return request.cancelled && request.cancelled(); };
  MutexLock lock(mu_);
  const auto done = [this, last = flush->last]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return outstanding_.empty() || *outstanding_.begin() > last;
  };
  settled_.WaitUntil(mu_, clock_, request.deadline,
                     [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return done() || cancelled(); });
  std::erase(flushes_, flush);
  if (!done()) {
    if (cancelled()) return Errorf(StatusCode::kCancelled, "flush: the caller gave up");
    return Errorf(StatusCode::kDeadlineExceeded, "flush: {} bytes are not on disk yet", bytes_);
  }
  if (flush->failed == 0) return OkStatus();
  return Errorf(StatusCode::kUnavailable, "flush: {} blocks could not be written to disk",
                flush->failed);
}

}  // namespace cairn::cache
