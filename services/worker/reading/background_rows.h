#pragma once
// A row source that works at the same time as the thread that computes: gathers run one after the
// other on an executor.

#include <cstdint>
#include <memory>

#include "cairn/common/clock.h"
#include "common/concurrency/executor.h"
#include "common/concurrency/mutex.h"
#include "services/worker/reading/row_source.h"

namespace cairn::worker {

// One thread asks; gathers run on the executor's.
class BackgroundRows final : public RowSource {
 public:
  struct Options {
    // Brings no more than this in a second, as a slower tier would. 0: no limit.
    uint64_t bytes_per_second = 0;
    size_t row_bytes = 0;  // KvLayout::row_bytes.
  };
  // `executor`, with one thread, and `clock` must outlive it.
  BackgroundRows(std::unique_ptr<RowSource> inner, Executor& executor, const Clock& clock,
                 const Options& options);
  ~BackgroundRows() override;
  std::shared_ptr<RowGather> Gather(RowRequest request) override;

 private:
  void Run(RowRequest request, RowGather& gather);

  const std::unique_ptr<RowSource> inner_;
  Executor& executor_;
  const Clock& clock_;
  const Options options_;
  TimePoint free_at_{};  // The executor's: when the tier has brought all that was asked so far.
  Mutex mu_;
  CondVar changed_;
  int under_way_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::worker
