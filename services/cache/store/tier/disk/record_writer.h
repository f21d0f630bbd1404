#pragma once
// Writes the records of extents that are on the device, and deletes those of released ones: one
// batch at a time, with everything that came during the last one.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"
#include "services/cache/store/tier/disk/extent_table.h"
#include "services/cache/store/tier/disk/loop.h"
#include "services/cache/store/tier/disk/patience.h"
#include "services/cache/store/tier/disk/record_store.h"
#include "services/cache/store/tier/disk/segment_files.h"

namespace cairn::cache::disk {

// Thread-safe.
class RecordWriter {
 public:
  struct Parts {
    RecordStore& store;
    ExtentTable& table;
    const SegmentFiles& files;
    const Clock& clock;
    uint64_t min_free_bytes = 0;
    // After each batch, with the number of writes in it. Their callbacks have run.
    std::function<void(size_t writes)> settled;
  };
  RecordWriter(Parts parts, const StartLoop& start);
  ~RecordWriter() { Stop(); }

  void Add(std::vector<PlacedExtent> placed);
  // `wake`: false leaves it to the next batch, or to Wake.
  void Forget(const ForgottenExtent& forgotten, bool wake = true);
  void Wake();
  // Returns OK when the records of what came before the call are in the database.
  Status WaitWritten(const Patience& patience);
  // Writes what came. If that fails, the rest is left to the next start. Idempotent.
  void Stop();

  // The bytes of extents that were written, whose record is not.
  uint64_t waiting_bytes() const;
  uint64_t failures() const { return failures_; }
  // Why the last batch was not written. OK: it was.
  Status failure() const;

 private:
  struct Batch {
    std::vector<PlacedExtent> placed;
    std::vector<ForgottenExtent> forgotten;
  };
  void Run();
  // False: the loop ends. `again`: what is to be forgotten waits until then. REQUIRES: `batch` is
  // empty.
  bool WaitForBatch(TimePoint again, Batch* batch);
  Status Apply(const Batch& batch);
  void Settle(const Batch& batch, const Status& status);

  const Parts parts_;
  std::atomic<uint64_t> failures_{0};
  mutable Mutex mu_;
  CondVar changed_;
  Batch next_ ABSL_GUARDED_BY(mu_);
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Numbers of changes that came, and that are done.
  uint64_t came_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t done_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t failed_batches_ ABSL_GUARDED_BY(mu_) = 0;
  Status last_failure_ ABSL_GUARDED_BY(mu_);
  bool failing_ ABSL_GUARDED_BY(mu_) = false;  // The last batch was not written.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Loop> loop_;
};

}  // namespace cairn::cache::disk
