#include "services/cache/store/tier/disk/scrubber.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace cairn::cache::disk {
namespace {

constexpr std::chrono::seconds kPause{1};  // Between two passes, and while nothing is stored.

}  // namespace

Scrubber::Scrubber(Parts parts, const StartLoop& start) : parts_(std::move(parts)) {
  if (parts_.bytes_per_second > 0) loop_ = start("disk-scrub", [this] { Run(); });
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
  TimePoint next = parts_.io.clock.Now();
  for (;;) {
    {
      MutexLock lock(mu_);
      changed_.WaitUntil(mu_, parts_.io.clock, next,
                         [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; });
      if (stopping_) return;
    }
    const uint64_t bytes = ScrubOne(&cursor);
    const TimePoint now = parts_.io.clock.Now();
    next = bytes == 0
               ? now + kPause
               : std::max(next, now - kPause) + std::chrono::nanoseconds(static_cast<int64_t>(
                                                    static_cast<double>(bytes) * 1e9 /
                                                    static_cast<double>(parts_.bytes_per_second)));
  }
}

uint64_t Scrubber::ScrubOne(std::pair<uint32_t, uint32_t>* cursor) {
  const std::optional<Resident> resident = parts_.table.NextToScrub(cursor);
  if (!resident) return 0;
  std::vector<PageBuffer> buffers;
  const Status status = parts_.io.Read({&*resident, 1}, &buffers)[0];
  if (status.ok()) bytes_ += resident->length;
  if (status.code() == StatusCode::kDataLoss) parts_.damage.Report(*resident, status);
  if (parts_.table.EndRead(*resident, /*head=*/0)) parts_.want_room();
  return resident->length;
}

}  // namespace cairn::cache::disk
