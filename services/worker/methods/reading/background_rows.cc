#include "services/worker/methods/reading/background_rows.h"

#include <algorithm>
#include <utility>

namespace cairn::worker {

BackgroundRows::BackgroundRows(std::unique_ptr<RowSource> inner, Executor& executor,
                               const Clock& clock, const Options& options)
    : inner_(std::move(inner)), executor_(executor), clock_(clock), options_(options) {}

BackgroundRows::~BackgroundRows() {
  MutexLock lock(mu_);
  stopping_ = true;
  changed_.NotifyAll();
  changed_.Wait(mu_, clock_,
                [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return under_way_ == 0; });
}

std::shared_ptr<RowGather> BackgroundRows::Gather(RowRequest request) {
  auto gather = std::make_shared<RowGather>();
  {
    MutexLock lock(mu_);
    ++under_way_;
  }
  const Status posted = executor_.Post([this, gather, request = std::move(request)]() mutable {
    Run(std::move(request), *gather);
    MutexLock lock(mu_);
    --under_way_;
    changed_.NotifyAll();
  });
  if (!posted.ok()) {
    gather->Finish(false);
    MutexLock lock(mu_);
    --under_way_;
  }
  return gather;
}

void BackgroundRows::Run(RowRequest request, RowGather& gather) {
  if (options_.bytes_per_second > 0) {
    size_t rows = 0;
    for (const RowRequest::Head& head : request.heads) rows += head.rows.size();
    const double seconds = static_cast<double>(2 * rows * options_.row_bytes) /
                           static_cast<double>(options_.bytes_per_second);
    free_at_ = std::max(free_at_, clock_.Now()) +
               std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
    MutexLock lock(mu_);
    changed_.WaitUntil(mu_, clock_, free_at_,
                       [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; });
    if (stopping_) {
      gather.Finish(false);
      return;
    }
  }
  const auto done = inner_->Gather(std::move(request));
  // Its rows are in the caller's memory only then.
  gather.Finish(done->Wait(clock_, TimePoint::max()) == RowGather::State::kHere);
}

}  // namespace cairn::worker
