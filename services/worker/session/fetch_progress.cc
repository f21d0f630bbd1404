#include "services/worker/session/fetch_progress.h"

#include <algorithm>

namespace cairn::worker {

FetchProgress::FetchProgress(const Shape& shape, TimePoint start, Duration stall, Duration limit)
    : shape_(shape),
      stall_(stall),
      limit_(start + limit),
      arrived_(static_cast<size_t>(shape.blocks) * shape.layers * shape.heads, false),
      layer_missing_(shape.layers, shape.blocks * shape.heads),
      block_missing_(shape.blocks, shape.layers * shape.heads),
      block_reason_(shape.blocks, MissReason::kNone),
      last_arrival_(start),
      first_failed_(shape.blocks) {
  CAIRN_CHECK(shape.blocks > 0 && shape.layers > 0 && shape.heads > 0);
}

uint32_t FetchProgress::Missing(const Piece& piece) const {
  MutexLock lock(mu_);
  return MissingLocked(piece);
}

uint32_t FetchProgress::MissingLocked(const Piece& piece) const {
  if (piece.block >= shape_.blocks || piece.layer >= shape_.layers ||
      piece.head_end > shape_.heads) {
    return 0;
  }
  uint32_t missing = 0;
  for (uint32_t head = piece.head_begin; head < piece.head_end; ++head) {
    missing += arrived_[Cell(piece, head)] ? 0 : 1;
  }
  return missing;
}

void FetchProgress::Arrived(const Piece& piece, uint64_t bytes, bool from_disk, TimePoint now) {
  MutexLock lock(mu_);
  const uint32_t heads = MissingLocked(piece);
  CAIRN_CHECK(heads > 0);
  for (uint32_t head = piece.head_begin; head < piece.head_end; ++head) {
    arrived_[Cell(piece, head)] = true;
  }
  layer_missing_[piece.layer] -= heads;
  block_missing_[piece.block] -= heads;
  last_arrival_ = now;
  (from_disk ? bytes_.disk : bytes_.host) += bytes;
  // Only a complete layer or block lets a waiter go on: waking it for each slice would cost more than
  // copying the slice.
  if (layer_missing_[piece.layer] == 0 || block_missing_[piece.block] == 0) changed_.NotifyAll();
}

void FetchProgress::BlockFailed(uint32_t block, MissReason reason) {
  if (block >= shape_.blocks) return;
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
  WaitProgress([&] { return arrived() || first_failed_ < shape_.blocks; });
  if (arrived() && first_failed_ == shape_.blocks) return OkStatus();
  return Errorf(StatusCode::kAborted, "fetch: layer {}: {} of {} pieces did not arrive", layer,
                layer_missing_[layer], shape_.blocks * shape_.heads);
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

uint32_t FetchProgress::CompletePrefixLocked() const {
  uint32_t block = 0;
  while (block < shape_.blocks && block_missing_[block] == 0 &&
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
  if (block == shape_.blocks) return MissReason::kNone;
  if (block_reason_[block] != MissReason::kNone) return block_reason_[block];
  return end_reason_ == MissReason::kNone ? MissReason::kUnavailable : end_reason_;
}

TimePoint FetchProgress::last_arrival() const {
  MutexLock lock(mu_);
  return last_arrival_;
}

BytesByTier FetchProgress::bytes() const {
  MutexLock lock(mu_);
  return bytes_;
}

}  // namespace cairn::worker
