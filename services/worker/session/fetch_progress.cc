#include "services/worker/session/fetch_progress.h"

#include <algorithm>

namespace cairn::worker {

FetchProgress::FetchProgress(uint32_t blocks, uint32_t layers, TimePoint start, Duration stall,
                             Duration limit)
    : blocks_(blocks),
      layers_(layers),
      stall_(stall),
      limit_(start + limit),
      arrived_(static_cast<size_t>(blocks) * layers, false),
      layer_missing_(layers, blocks),
      block_missing_(blocks, layers),
      block_reason_(blocks, MissReason::kNone),
      slices_missing_(static_cast<uint64_t>(blocks) * layers),
      last_arrival_(start),
      first_failed_(blocks) {
  CAIRN_CHECK(blocks > 0 && layers > 0);
}

void FetchProgress::SliceArrived(uint32_t block, uint32_t layer, uint64_t bytes, bool from_disk,
                                 TimePoint now) {
  if (block >= blocks_ || layer >= layers_) return;
  MutexLock lock(mu_);
  const size_t index = static_cast<size_t>(layer) * blocks_ + block;
  if (arrived_[index]) return;
  arrived_[index] = true;
  --block_missing_[block];
  --slices_missing_;
  last_arrival_ = now;
  (from_disk ? bytes_.disk : bytes_.host) += bytes;
  // Only a complete layer or block lets a waiter go on: waking it for each slice would cost more than
  // copying the slice.
  const bool layer_complete = --layer_missing_[layer] == 0;
  if (layer_complete || block_missing_[block] == 0) changed_.NotifyAll();
}

void FetchProgress::BlockFailed(uint32_t block, MissReason reason) {
  if (block >= blocks_) return;
  MutexLock lock(mu_);
  if (block_reason_[block] == MissReason::kNone) block_reason_[block] = reason;
  first_failed_ = std::min(first_failed_, block);
  changed_.NotifyAll();
}

void FetchProgress::Ended(MissReason reason_for_the_rest) {
  MutexLock lock(mu_);
  ended_ = true;
  if (end_reason_ == MissReason::kNone) end_reason_ = reason_for_the_rest;
  changed_.NotifyAll();
}

template <typename Predicate>
void FetchProgress::WaitProgress(Predicate done) {
  const auto over = [&] { return timed_out_ || ended_ || done(); };
  while (!over()) {
    const TimePoint arrival = last_arrival_;
    const TimePoint deadline = std::min(arrival + stall_, limit_);
    if (changed_.WaitUntil(mu_, deadline, over)) return;
    // Slices that complete nothing move the deadline without waking us.
    if (last_arrival_ != arrival && deadline < limit_) continue;
    timed_out_ = true;
    if (end_reason_ == MissReason::kNone) end_reason_ = MissReason::kDeadline;
  }
}

Status FetchProgress::WaitLayer(uint32_t layer) {
  MutexLock lock(mu_);
  const auto arrived = [&] { return layer_missing_[layer] == 0; };
  WaitProgress([&] { return arrived() || first_failed_ < blocks_; });
  if (arrived() && first_failed_ == blocks_) return OkStatus();
  return Errorf(StatusCode::kAborted, "fetch: layer {}: {} of {} blocks did not arrive", layer,
                layer_missing_[layer], blocks_);
}

void FetchProgress::WaitDone() {
  MutexLock lock(mu_);
  WaitProgress([&] { return CompletePrefixLocked() == first_failed_; });
}

void FetchProgress::WaitEnded() {
  MutexLock lock(mu_);
  changed_.Wait(mu_, [&] { return ended_; });
}

bool FetchProgress::TimedOut() const {
  MutexLock lock(mu_);
  return timed_out_;
}

bool FetchProgress::Complete() const {
  MutexLock lock(mu_);
  return slices_missing_ == 0 && first_failed_ == blocks_;
}

uint32_t FetchProgress::CompletePrefixLocked() const {
  uint32_t block = 0;
  while (block < blocks_ && block_missing_[block] == 0 &&
         block_reason_[block] == MissReason::kNone) {
    ++block;
  }
  return block;
}

uint32_t FetchProgress::CompletePrefix() const {
  MutexLock lock(mu_);
  return CompletePrefixLocked();
}

MissReason FetchProgress::Reason() const {
  MutexLock lock(mu_);
  const uint32_t block = CompletePrefixLocked();
  if (block == blocks_) return MissReason::kNone;
  if (block_reason_[block] != MissReason::kNone) return block_reason_[block];
  return end_reason_ == MissReason::kNone ? MissReason::kUnavailable : end_reason_;
}

BytesByTier FetchProgress::bytes() const {
  MutexLock lock(mu_);
  return bytes_;
}

}  // namespace cairn::worker
