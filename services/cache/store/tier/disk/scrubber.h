#pragma once
// Reads what is stored, again and again, at a given speed, and reports what is damaged.

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "common/concurrency/mutex.h"
#include "services/cache/store/tier/disk/damage_reports.h"
#include "services/cache/store/tier/disk/extent_table.h"
#include "services/cache/store/tier/disk/loop.h"
#include "services/cache/store/tier/disk/segment_io.h"

namespace cairn::cache::disk {

// Thread-safe.
class Scrubber {
 public:
  // `bytes_per_second`: 0 scrubs nothing.
  Scrubber(ExtentTable& table, DamageReports& damage, const SegmentIo& io,
           uint64_t bytes_per_second, const StartLoop& start);
  ~Scrubber() { Stop(); }
  // Ends the read under way. Idempotent.
  void Stop();
  uint64_t bytes() const { return bytes_; }

 private:
  void Run();
  // Verifies the next extent after `cursor`. Returns its size.
  uint64_t ScrubOne(std::pair<uint32_t, uint32_t>* cursor);

  ExtentTable& table_;
  DamageReports& damage_;
  const SegmentIo io_;
  const uint64_t bytes_per_second_;
  std::atomic<uint64_t> bytes_{0};
  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Loop> loop_;
};

}  // namespace cairn::cache::disk
