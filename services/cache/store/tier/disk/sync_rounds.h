#pragma once
// Makes durable what was written: first the segments that were written since they were last synced,
// and then the records, which say where the bytes are. In rounds, each of which serves all who
// waited for it when it began.

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"
#include "services/cache/store/tier/disk/io_time.h"
#include "services/cache/store/tier/disk/loop.h"
#include "services/cache/store/tier/disk/patience.h"
#include "services/cache/store/tier/disk/record_store.h"
#include "services/cache/store/tier/disk/segment_files.h"

namespace cairn::cache::disk {

// Thread-safe.
class SyncRounds {
 public:
  SyncRounds(RecordStore& store, SegmentFiles& files, const Clock& clock, const StartLoop& start);
  ~SyncRounds() { Stop(); }

  // Bytes in the segment are not durable. Before the record that names them.
  void Wrote(uint32_t segment);
  // Everything that was written, and recorded, before the call survives a power loss when it
  // returns OK.
  Status Sync(const Patience& patience);
  // Ends the rounds that were asked for. Idempotent.
  void Stop();
  uint64_t failures() const { return failures_; }
  IoTimeStats times() const { return times_.Get(); }

 private:
  void Run();
  Status SyncAll(const std::set<uint32_t>& segments);

  RecordStore& store_;
  SegmentFiles& files_;
  const Clock& clock_;
  std::atomic<uint64_t> failures_{0};
  IoTime times_;
  Mutex mu_;
  CondVar changed_;
  std::set<uint32_t> unsynced_ ABSL_GUARDED_BY(mu_);
  // Numbers of rounds: wanted, done, and the last one that failed.
  uint64_t wanted_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t done_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t failed_ ABSL_GUARDED_BY(mu_) = 0;
  Status failure_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Loop> loop_;
};

}  // namespace cairn::cache::disk
