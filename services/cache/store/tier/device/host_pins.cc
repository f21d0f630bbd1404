#include "services/cache/store/tier/device/host_pins.h"

#include <utility>

#include "common/log/log.h"

namespace cairn::cache {

HostPins::HostPins(HostTier* host, std::shared_ptr<device::Device> device, const Clock* clock,
                   bool enabled)
    : host_(*host),
      device_(std::move(device)),
      clock_(*clock),
      enabled_(enabled),
      segments_(host->segment_count()) {
  host_.SetMemoryListener([this](uint32_t segment) { BeforeChange(segment); });
}

HostPins::~HostPins() { host_.SetMemoryListener(nullptr); }

bool HostPins::Pin(std::span<const std::byte> bytes) {
  const auto index = host_.SegmentAt(bytes);
  if (!index || !enabled_) return false;
  {
    MutexLock lock(mu_);
    Segment& segment = segments_[*index];
    if (segment.state == State::kPinned) {
      ++segment.uses;
      return true;
    }
    // Another copy pins it at the moment: this one does not wait for that.
    if (segment.state == State::kPinning || clock_.Now() < refused_until_) return false;
    segment.state = State::kPinning;
  }
  const std::span<std::byte> memory = host_.SegmentMemory(*index);
  auto registration = device_->Register(memory, /*read_only=*/false);
  MutexLock lock(mu_);
  Segment& segment = segments_[*index];
  if (!registration.ok()) {
    segment.state = State::kUnpinned;
    refused_until_ = clock_.Now() + kRetryAfter;
    if (refusals_++ == 0) {
      log::Warn("device_pinning_refused",
                {{"bytes", log::Num(memory.size())}, {"reason", Message(registration.status())}});
    }
    return false;
  }
  segment.registration = *std::move(registration);
  segment.state = State::kPinned;
  segment.uses = 1;
  pinned_bytes_ += memory.size();
  return true;
}

void HostPins::Unpin(std::span<const std::byte> bytes) {
  const auto index = host_.SegmentAt(bytes);
  MutexLock lock(mu_);
  CAIRN_CHECK(index && segments_[*index].uses > 0);
  --segments_[*index].uses;
}

// The segment is empty, so no copy uses it.
void HostPins::BeforeChange(uint32_t index) {
  MutexLock lock(mu_);
  Segment& segment = segments_[index];
  CAIRN_CHECK(segment.uses == 0 && segment.state != State::kPinning);
  if (segment.state == State::kUnpinned) return;
  segment.registration.Release();
  segment.state = State::kUnpinned;
  pinned_bytes_ -= host_.SegmentMemory(index).size();
}

uint64_t HostPins::pinned_bytes() const {
  MutexLock lock(mu_);
  return pinned_bytes_;
}

uint64_t HostPins::refusals() const {
  MutexLock lock(mu_);
  return refusals_;
}

}  // namespace cairn::cache
