#pragma once
// Reads what is stored, again and again, at a given speed, and reports what is damaged.

#include <atomic>
#include <cstdint>
#include <functional>
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
  struct Parts {
    ExtentTable& table;
    DamageReports& damage;
    SegmentIo io;
    uint64_t bytes_per_second = 0;  // 0: it scrubs nothing.
    // Writes wait for room, and a read here may have held it.
    std::function<void()> want_room;
  };
  Scrubber(Parts parts, const StartLoop& start);
  ~Scrubber() { Stop(); }
  // Ends the read under way. Idempotent.
  void Stop();
  uint64_t bytes() const { return bytes_; }

 private:
  void Run();
  // Verifies the next extent after `cursor`. Returns its size.
  uint64_t ScrubOne(std::pair<uint32_t, uint32_t>* cursor);

  const Parts parts_;
  std::atomic<uint64_t> bytes_{0};
  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Loop> loop_;
};

}  // namespace cairn::cache::disk
