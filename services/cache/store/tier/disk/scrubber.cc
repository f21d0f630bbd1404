#include "services/cache/store/tier/disk/scrubber.h"

#include <algorithm>
#include <vector>

namespace cairn::cache::disk {
namespace {

constexpr std::chrono::seconds kPause{1};  // Between two passes, and while nothing is stored.

}  // namespace

Scrubber::Scrubber(ExtentTable& table, DamageReports& damage, const SegmentIo& io,
                   uint64_t bytes_per_second, const StartLoop& start)
    : table_(table), damage_(damage), io_(io), bytes_per_second_(bytes_per_second) {
  if (bytes_per_second > 0) loop_ = start("disk-scrub", [this] { Run(); });
}

void Scrubber::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  loop_.reset();
}

void Scrubber::Run() {
  std::pair<uint32_t, uint32_t> cursor{0, 0};
  TimePoint next = io_.clock.Now();
  for (;;) {
    {
      MutexLock lock(mu_);
      changed_.WaitUntil(mu_, io_.clock, next,
                         [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; });
      if (stopping_) return;
    }
    const uint64_t bytes = ScrubOne(&cursor);
    const TimePoint now = io_.clock.Now();
    next = bytes == 0 ? now + kPause
                      : std::max(next, now - kPause) +
                            std::chrono::nanoseconds(static_cast<int64_t>(
                                static_cast<double>(bytes) * 1e9 /
                                static_cast<double>(bytes_per_second_)));
  }
}

uint64_t Scrubber::ScrubOne(std::pair<uint32_t, uint32_t>* cursor) {
  const std::optional<Resident> resident = table_.NextToScrub(cursor);
  if (!resident) return 0;
  std::vector<PageBuffer> buffers;
  const Status status = io_.Read({&*resident, 1}, &buffers)[0];
  if (status.ok()) bytes_ += resident->length;
  if (status.code() == StatusCode::kDataLoss) damage_.Report(*resident, status);
  table_.EndRead(resident->place.segment);
  return resident->length;
}

}  // namespace cairn::cache::disk
