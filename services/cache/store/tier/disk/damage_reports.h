#pragma once
// Tells the tier's owner of stored bytes that are not what they were.

#include <atomic>

#include "common/concurrency/mutex.h"
#include "services/cache/store/tier/disk/extent_table.h"
#include "services/cache/store/tier/disk/record_store.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache::disk {

// Thread-safe.
class DamageReports {
 public:
  explicit DamageReports(RecordStore& store) : store_(store) {}
  void SetListener(PersistentTier::DamageListener listener);
  void Report(const Resident& resident, const Status& status);
  uint64_t count() const { return count_; }

 private:
  RecordStore& store_;
  std::atomic<uint64_t> count_{0};
  Mutex mu_;  // Held while the listener runs.
  PersistentTier::DamageListener listener_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache::disk
