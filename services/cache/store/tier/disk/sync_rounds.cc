#include "services/cache/store/tier/disk/sync_rounds.h"

#include <utility>

namespace cairn::cache::disk {

SyncRounds::SyncRounds(RecordStore& store, SegmentFiles& files, const Clock& clock,
                       const StartLoop& start)
    : store_(store), files_(files), clock_(clock) {
  loop_ = start("disk-sync", [this] { Run(); });
}

void SyncRounds::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  loop_.reset();
}

void SyncRounds::Wrote(uint32_t segment) {
  MutexLock lock(mu_);
  unsynced_.insert(segment);
}

Status SyncRounds::Sync(const Patience& patience) {
  MutexLock lock(mu_);
  const uint64_t round = ++wanted_;
  changed_.NotifyAll();
  CAIRN_RETURN_IF_ERROR(patience.Wait(
      changed_, mu_, clock_, "synced",
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return done_ >= round || stopping_; }));
  if (done_ < round) {
    return Errorf(StatusCode::kUnavailable, "disk tier: flush: the tier closes");
  }
  return failed_ >= round ? failure_ : OkStatus();
}

void SyncRounds::Run() {
  for (;;) {
    uint64_t round;
    std::set<uint32_t> segments;
    {
      MutexLock lock(mu_);
      changed_.Wait(mu_, clock_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stopping_ || wanted_ > done_;
      });
      if (wanted_ == done_) return;
      round = wanted_;
      segments.swap(unsynced_);
    }
    const TimePoint begin = clock_.Now();
    Status status = SyncAll(segments);
    times_.Add(clock_.Now() - begin);
    if (!status.ok()) ++failures_;
    MutexLock lock(mu_);
    if (!status.ok()) {
      unsynced_.insert(segments.begin(), segments.end());
      failed_ = round;
      failure_ = std::move(status);
    }
    done_ = round;
    changed_.NotifyAll();
  }
}

Status SyncRounds::SyncAll(const std::set<uint32_t>& segments) {
  for (const uint32_t segment : segments) CAIRN_RETURN_IF_ERROR(files_.Sync(segment));
  // The records say where the bytes are, so they come last.
  const Status status = store_.Sync();
  // After a fault, the database refuses everything until it is asked to go on.
  return status.ok() || !store_.Resume().ok() ? status : store_.Sync();
}

}  // namespace cairn::cache::disk
