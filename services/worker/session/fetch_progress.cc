#include "services/worker/session/fetch_progress.h"

#include <algorithm>

namespace cairn::worker {
namespace {

// A slice that is on its way is complete within it, unless something is wrong.
constexpr std::chrono::milliseconds kSliceTime{20};
// How long a decision to wait for a layer holds. Nothing tells when a fetch has become too slow.
constexpr std::chrono::milliseconds kDecideAgain{10};

// Whether a wait ends now. Otherwise it ends at `until`, which becomes no later than the interrupt.
bool Ends(const FetchInterrupt& interrupt, TimePoint now, TimePoint* until) {
  if (interrupt.wanted && interrupt.wanted()) return true;
  if (interrupt.at > now) *until = std::min(*until, interrupt.at);
  return false;
}

FetchPilot::Setup FetchAll(const FetchProgress::Shape& shape) {
  FetchPilot::Setup setup;
  setup.blocks = shape.blocks;
  setup.layers = shape.layers;
  setup.rate = FetchModel::kUnknownRate;
  setup.choose = false;
  return setup;
}

}  // namespace

FetchProgress::FetchProgress(const Clock& clock, Wakeup& wakeup, const Shape& shape,
                             const FetchDeadlines& deadlines)
    : FetchProgress(clock, wakeup, shape.heads, deadlines, FetchAll(shape), PrefillModel()) {}

FetchProgress::FetchProgress(const Clock& clock, Wakeup& wakeup, uint32_t heads,
                             const FetchDeadlines& deadlines, const FetchPilot::Setup& setup,
                             const PrefillModel& prefill)
    : clock_(clock),
      wakeup_(wakeup),
      shape_{setup.blocks, setup.layers, heads},
      deadlines_(deadlines),
      pilot_(setup, prefill),
      pieces_(shape_, deadlines.start),
      patience_(deadlines),
      writes_(shape_.blocks, 0) {}

std::optional<FetchPlan::Range> FetchProgress::NextRange() {
  MutexLock lock(mu_);
  while (!stopping_ && !timed_out_ && !pieces_.failed()) {
    if (const auto range = pilot_.Next(Now())) {
      asking_ = true;
      patience_.Heard(clock_.Now());
      return range;
    }
    if (CompletePrefixLocked() == shape_.blocks) break;
    changed_.Wait(mu_, clock_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return stopping_ || timed_out_ || pilot_.plan().Next(1).has_value() ||
             CompletePrefixLocked() == shape_.blocks;
    });
  }
  return std::nullopt;
}

void FetchProgress::CallEnded() {
  MutexLock lock(mu_);
  asking_ = false;
  pilot_.Ended(Now());
}

bool FetchProgress::Asking() const {
  MutexLock lock(mu_);
  return asking_;
}

uint32_t FetchProgress::Missing(const Piece& piece) const {
  MutexLock lock(mu_);
  return MissingLocked(piece);
}

uint32_t FetchProgress::MissingLocked(const Piece& piece) const {
  const uint32_t missing = pieces_.Missing(piece);
  return missing > 0 && pilot_.plan().computed(piece.block) ? 0 : missing;
}

bool FetchProgress::BeginWrite(uint32_t block) {
  MutexLock lock(mu_);
  if (block >= shape_.blocks || pilot_.plan().computed(block) ||
      (block >= claim_begin_ && block < claim_end_)) {
    return false;
  }
  ++writes_[block];
  return true;
}

void FetchProgress::EndWrite(uint32_t block) {
  MutexLock lock(mu_);
  --writes_[block];
  if (block >= claim_begin_ && block < claim_end_) changed_.NotifyAll();
}

void FetchProgress::Arrived(const Piece& piece, uint64_t bytes, std::optional<TierKind> from,
                            bool lent) {
  const TimePoint now = clock_.Now();
  MutexLock lock(mu_);
  CAIRN_CHECK(MissingLocked(piece) > 0);
  patience_.Heard(now);
  const FetchedPieces::Completed completed =
      pieces_.Arrived(piece, {.bytes = bytes, .tier = from, .lent = lent}, now);
  if (!completed.cell) return;
  pilot_.Arrived(piece.block, piece.layer, Since(now));
  // Only a complete layer or block lets a waiter go on: waking it for each slice would cost more
  // than copying the slice.
  if (pilot_.plan().LayerMissing(piece.layer) == 0 || completed.block) {
    changed_.NotifyAll();
    wakeup_.Notify();
  }
}

bool FetchProgress::Untouched(uint32_t block) const {
  MutexLock lock(mu_);
  return pieces_.Untouched(block);
}

void FetchProgress::BlockFailed(uint32_t block, MissReason reason) {
  if (block >= shape_.blocks) return;
  MutexLock lock(mu_);
  if (pilot_.plan().computed(block)) return;
  pieces_.Fail(block, reason);
  changed_.NotifyAll();
  wakeup_.Notify();
}

void FetchProgress::Ended(MissReason reason_for_the_rest) {
  MutexLock lock(mu_);
  ended_ = true;
  asking_ = false;
  pilot_.Ended(Now());
  if (end_reason_ == MissReason::kNone) end_reason_ = reason_for_the_rest;
  changed_.NotifyAll();
  // With the lock held: whoever sees the end may destroy the wakeup.
  wakeup_.Notify();
}

FetchProgress::Step FetchProgress::Decide(uint32_t front) {
  MutexLock lock(mu_);
  while (front < shape_.blocks && Complete(front)) ++front;
  Step step{front, front};
  if (timed_out_ || ended_ || pieces_.failed() || front == shape_.blocks) return step;
  step.target = std::max(front, pilot_.Decide(front, Now()));
  // Blocks that have come are not computed again.
  for (uint32_t block = front; block < step.target; ++block) {
    if (Complete(block)) step.target = block;
  }
  changed_.NotifyAll();
  return step;
}

bool FetchProgress::Claim(uint32_t begin, uint32_t end, const std::function<void()>& cancel_call) {
  MutexLock lock(mu_);
  claim_begin_ = begin;
  claim_end_ = end;
  const auto no_writes = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return std::all_of(writes_.begin() + begin, writes_.begin() + end,
                       [](uint32_t writes) { return writes == 0; });
  };
  const TimePoint now = clock_.Now();
  bool quiet = changed_.WaitUntil(mu_, clock_, now + kSliceTime, no_writes);
  if (!quiet && cancel_call) {
    // Half a slice that does not go on. All other bytes on the way are asked for again.
    cancel_call();
    quiet = changed_.WaitUntil(mu_, clock_, now + deadlines_.stall, no_writes);
  }
  claim_begin_ = claim_end_ = 0;
  if (quiet) {
    for (uint32_t block = begin; block < end; ++block) pilot_.plan().Computed(block);
    changed_.NotifyAll();
  } else {
    GiveUp();
  }
  return quiet;
}

void FetchProgress::GiveUp() {
  timed_out_ = true;
  if (end_reason_ == MissReason::kNone) end_reason_ = MissReason::kDeadline;
  changed_.NotifyAll();
}

void FetchProgress::SetComputing(bool computing) {
  MutexLock lock(mu_);
  pilot_.SetComputing(computing, Now());
}

template <typename Done, typename Leave>
void FetchProgress::WaitProgress(Done done, Leave leave) {
  const TimePoint entered = clock_.Now();
  while (true) {
    const uint64_t seen = wakeup_.Now();
    TimePoint until;
    {
      MutexLock lock(mu_);
      if (timed_out_ || ended_ || done()) return;
      // Slices that complete nothing move the deadline without waking us.
      until = patience_.Deadline(entered);
      if (clock_.Now() >= until) return GiveUp();
      if (leave(&until)) return;
    }
    wakeup_.WaitPast(seen, clock_, until);
  }
}

Status FetchProgress::WaitLayer(uint32_t layer, uint32_t front, const FetchInterrupt& interrupt) {
  TimePoint decide = clock_.Now() + kDecideAgain;
  const auto arrived = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return pilot_.plan().LayerMissing(layer) == 0;
  };
  const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return arrived() || pieces_.failed();
  };
  const auto leave = [&](TimePoint* until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const TimePoint now = clock_.Now();
    if (Ends(interrupt, now, until)) return true;
    if (!pilot_.chooses()) return false;
    if (now >= decide) {
      turned_back_ = pilot_.ShouldTurnBack(front, layer, Since(now));
      decide = now + kDecideAgain;
    }
    *until = std::min(*until, decide);
    return turned_back_;
  };
  {
    MutexLock lock(mu_);
    turned_back_ = false;
  }
  WaitProgress(done, leave);
  MutexLock lock(mu_);
  if (arrived() && !pieces_.failed()) return OkStatus();
  return Errorf(StatusCode::kAborted, "fetch: layer {}: {} of {} blocks did not arrive", layer,
                pilot_.plan().LayerMissing(layer), shape_.blocks);
}

bool FetchProgress::TurnedBack() const {
  MutexLock lock(mu_);
  return turned_back_ && !timed_out_ && !ended_ && !pieces_.failed();
}

void FetchProgress::FetchTheRest() {
  MutexLock lock(mu_);
  pilot_.plan().SetTarget(0);
  changed_.NotifyAll();
}

void FetchProgress::WaitDone(const FetchInterrupt& interrupt) {
  WaitProgress([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                   mu_) { return CompletePrefixLocked() == pieces_.first_failed(); },
               [&](TimePoint* until) { return Ends(interrupt, clock_.Now(), until); });
}

bool FetchProgress::PollDone() {
  MutexLock lock(mu_);
  const TimePoint now = clock_.Now();
  patience_.Polled(now);
  if (DoneLocked()) return true;
  if (now < patience_.PollDeadline()) return false;
  GiveUp();
  return true;
}

TimePoint FetchProgress::PollDeadline() const {
  MutexLock lock(mu_);
  return patience_.PollDeadline();
}

void FetchProgress::Stop() {
  MutexLock lock(mu_);
  stopping_ = true;
  changed_.NotifyAll();
}

void FetchProgress::WaitEnded() {
  MutexLock lock(mu_);
  changed_.Wait(mu_, clock_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_; });
}

bool FetchProgress::Broken() const {
  MutexLock lock(mu_);
  return timed_out_ || pieces_.failed() || (ended_ && CompletePrefixLocked() < shape_.blocks);
}

bool FetchProgress::TimedOut() const {
  MutexLock lock(mu_);
  return timed_out_;
}

bool FetchProgress::Complete(uint32_t block) const {
  return pilot_.plan().computed(block) || pieces_.Whole(block);
}

uint32_t FetchProgress::CompletePrefixLocked() const {
  uint32_t block = 0;
  while (block < shape_.blocks && Complete(block)) ++block;
  return block;
}

uint32_t FetchProgress::CompletePrefix() const {
  MutexLock lock(mu_);
  return CompletePrefixLocked();
}

uint32_t FetchProgress::FetchedBlocks() const {
  MutexLock lock(mu_);
  const uint32_t prefix = CompletePrefixLocked();
  uint32_t fetched = 0;
  for (uint32_t block = 0; block < prefix; ++block) {
    fetched += pilot_.plan().computed(block) ? 0 : 1;
  }
  return fetched;
}

MissReason FetchProgress::Reason() const {
  MutexLock lock(mu_);
  const uint32_t block = CompletePrefixLocked();
  if (block == shape_.blocks) return MissReason::kNone;
  if (pieces_.reason(block) != MissReason::kNone) return pieces_.reason(block);
  return end_reason_ == MissReason::kNone ? MissReason::kUnavailable : end_reason_;
}

TimePoint FetchProgress::last_arrival() const {
  MutexLock lock(mu_);
  return pieces_.last_arrival();
}

BytesByTier FetchProgress::bytes() const {
  MutexLock lock(mu_);
  return pieces_.bytes();
}

FetchModel::Sample FetchProgress::Sample(TierKind tier) const {
  MutexLock lock(mu_);
  return pilot_.Sample(tier);
}

std::vector<FetchProgress::LayerTimes> FetchProgress::layer_times() const {
  MutexLock lock(mu_);
  return pieces_.layer_times();
}

}  // namespace cairn::worker
