#pragma once
// Which segments of the host tier are pinned, so that copies between them and devices need no
// detour. A segment is pinned when it is first copied, and unpinned before its memory changes
// (HostTier::SetMemoryListener): the address stays, and a driver would go on with the old pages.
//
// Where the machine refuses, nothing more is pinned for a while, and copies take the detour
// (copy_lane.h). Thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"
#include "common/device/device.h"
#include "services/cache/store/tier/host_tier.h"

namespace cairn::cache {

class HostPins {
 public:
  static constexpr Duration kRetryAfter = std::chrono::minutes(1);

  // `device`: whose driver pins; memory that is pinned serves all devices of the driver. `clock`
  // and `host` outlive this. Without `enabled`, nothing is ever pinned.
  HostPins(HostTier* host, std::shared_ptr<device::Device> device, const Clock* clock,
           bool enabled);
  // REQUIRES: no copies under way.
  ~HostPins();
  HostPins(const HostPins&) = delete;
  HostPins& operator=(const HostPins&) = delete;

  // True: the bytes are pinned until Unpin. REQUIRES: what lies there stays reserved until then, so
  // that its segment does not change. May take the time of pinning a segment.
  bool Pin(std::span<const std::byte> bytes);
  void Unpin(std::span<const std::byte> bytes);

  uint64_t pinned_bytes() const;
  uint64_t refusals() const;

 private:
  enum class State : uint8_t { kUnpinned, kPinning, kPinned };
  struct Segment {
    State state = State::kUnpinned;
    uint32_t uses = 0;
    device::HostRegistration registration;
  };

  void BeforeChange(uint32_t segment);

  HostTier& host_;
  const std::shared_ptr<device::Device> device_;
  const Clock& clock_;
  const bool enabled_;
  mutable Mutex mu_;
  std::vector<Segment> segments_ ABSL_GUARDED_BY(mu_);
  uint64_t pinned_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t refusals_ ABSL_GUARDED_BY(mu_) = 0;
  TimePoint refused_until_ ABSL_GUARDED_BY(mu_){};
};

}  // namespace cairn::cache
