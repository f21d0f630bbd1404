// What survives a power loss: flushes, and the named values. Both wait for the device on threads of
// their own, so that a device that hangs holds up no caller for longer than it is willing to wait.

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "services/cache/store/tier/disk/impl.h"

namespace cairn::cache {
namespace {

constexpr std::chrono::milliseconds kAskEvery{100};  // Whether a flush was cancelled.
constexpr size_t kMaxMetaOperations = 64;

}  // namespace

struct DiskTier::Impl::MetaOperation {
  std::function<Status()> run;
  bool done = false;
  Status status;
};

Status DiskTier::Impl::Flush(Duration limit, const std::function<bool()>& cancelled) {
  const TimePoint now = SteadyClock::Get().Now();
  const TimePoint deadline = limit >= TimePoint::max() - now ? TimePoint::max() : now + limit;
  const auto wait = [&](const char* what, const auto& ready)
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> Status {
    for (;;) {
      const TimePoint ask = SteadyClock::Get().Now() + kAskEvery;
      if (settled_cv_.WaitUntil(mu_, cancelled ? std::min(deadline, ask) : deadline, ready))
        return OkStatus();
      if (cancelled && cancelled())
        return Errorf(StatusCode::kCancelled, "disk tier: flush: the caller gave up");
      if (SteadyClock::Get().Now() >= deadline)
        return Errorf(StatusCode::kDeadlineExceeded, "disk tier: flush: the device has not {}",
                      what);
    }
  };
  MutexLock lock(mu_);
  const uint64_t goal = changes_;
  const uint64_t failed = failed_batches_;
  CAIRN_RETURN_IF_ERROR(
      wait("written all records", [this, goal, failed]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return changes_done_ >= goal || failed_batches_ != failed || stopping_;
      }));
  if (changes_done_ < goal) {
    return failed_batches_ != failed
               ? last_failure_
               : Errorf(StatusCode::kUnavailable, "disk tier: flush: the tier closes");
  }
  const uint64_t round = ++syncs_wanted_;
  sync_cv_.NotifyOne();
  CAIRN_RETURN_IF_ERROR(wait("synced", [this, round]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return syncs_done_ >= round || stopping_;
  }));
  if (syncs_done_ < round)
    return Errorf(StatusCode::kUnavailable, "disk tier: flush: the tier closes");
  return sync_failed_ >= round ? sync_failure_ : OkStatus();
}

void DiskTier::Impl::SyncLoop() {
  pthread_setname_np(pthread_self(), "disk-sync");
  for (;;) {
    uint64_t round;
    std::vector<uint32_t> segments;
    {
      MutexLock lock(mu_);
      sync_cv_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stopping_ || syncs_wanted_ > syncs_done_;
      });
      if (syncs_wanted_ == syncs_done_) return;
      round = syncs_wanted_;
      segments.assign(unsynced_.begin(), unsynced_.end());
      unsynced_.clear();
    }
    // The records say where the bytes are, so they come last.
    Status status = SyncSegments(segments);
    if (status.ok()) status = store_->Sync();
    // After a fault, the database refuses everything until it is asked to go on.
    if (!status.ok() && store_->Resume().ok()) status = store_->Sync();
    if (!status.ok()) ++io_errors_;
    MutexLock lock(mu_);
    if (!status.ok()) {
      unsynced_.insert(segments.begin(), segments.end());
      sync_failed_ = round;
      sync_failure_ = std::move(status);
    }
    syncs_done_ = round;
    settled_cv_.NotifyAll();
  }
}

Status DiskTier::Impl::SyncSegments(std::span<const uint32_t> segments) {
  for (const uint32_t segment : segments) CAIRN_RETURN_IF_ERROR(files_.Sync(segment));
  return OkStatus();
}

Status DiskTier::Impl::PutMeta(std::string_view name, std::string_view value) {
  if (name.empty()) return InvalidArgument("field 'name': got '', expected a name");
  return RunMeta([this, key = MetaKey(name), stored = std::string(value)] {
    return store_->PutSmall(key, stored);
  });
}

Status DiskTier::Impl::DeleteMeta(std::string_view name) {
  if (name.empty()) return InvalidArgument("field 'name': got '', expected a name");
  return RunMeta([this, key = MetaKey(name)] { return store_->DeleteSmall(key); });
}

Status DiskTier::Impl::RunMeta(std::function<Status()> run) {
  const auto operation = std::make_shared<MetaOperation>();
  operation->run = std::move(run);
  MutexLock lock(meta_mu_);
  if (meta_stopping_ || meta_queue_.size() >= kMaxMetaOperations) {
    return Errorf(StatusCode::kUnavailable,
                  "disk tier: {} named values wait to be written, expected fewer than {}",
                  meta_queue_.size(), kMaxMetaOperations);
  }
  meta_queue_.push_back(operation);
  meta_cv_.NotifyAll();
  if (!meta_cv_.WaitUntil(meta_mu_, SteadyClock::Get().Now() + options.meta_patience,
                          [&] { return operation->done; })) {
    return Errorf(StatusCode::kUnavailable,
                  "disk tier: the device has not written a named value in {:.1f} s",
                  Seconds(options.meta_patience));
  }
  return operation->status;
}

void DiskTier::Impl::MetaLoop() {
  pthread_setname_np(pthread_self(), "disk-meta");
  for (;;) {
    std::shared_ptr<MetaOperation> operation;
    {
      MutexLock lock(meta_mu_);
      meta_cv_.Wait(meta_mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(meta_mu_) {
        return meta_stopping_ || !meta_queue_.empty();
      });
      if (meta_queue_.empty()) return;
      operation = std::move(meta_queue_.front());
      meta_queue_.pop_front();
    }
    Status status = operation->run();
    MutexLock lock(meta_mu_);
    operation->status = std::move(status);
    operation->done = true;
    meta_cv_.NotifyAll();
  }
}

}  // namespace cairn::cache
