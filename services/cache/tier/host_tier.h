#pragma once
// The host tier: extents in one arena of memfd segments.
//
// The arena is one range of addresses. Each segment is a memfd of its own, so that it can be handed to another process, and is
// sealed against resizing, so that no holder of the descriptor can pull pages from under us. An extent's id is its byte offset
// in the arena; it starts on a 4 KiB page and never spans segments. ExtentAllocator decides where it lies.
//
// Thread-safe.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "services/cache/tier/extent_allocator.h"
#include "services/cache/tier/tier.h"
#include "services/common/concurrency/mutex.h"
#include "services/common/status/status.h"

namespace cairn::cache {

struct HostTierOptions {
  enum class HugePages : uint8_t {
    kOff,
    kTry,      // Where pages of 2 MiB are reserved for all of the arena; else 4 KiB pages.
    kRequire,  // FAILED_PRECONDITION where they are not.
  };

  uint64_t capacity_bytes = 0;  // Of the arena. Rounded down to pages. At least one page.
  // Bytes of a segment, a multiple of 2 MiB up to 2 GiB. 0: 64 MiB, doubled until the arena has at most 512 segments, or the whole
  // arena where that is smaller. The largest extent is one segment.
  uint64_t segment_bytes = 0;
  HugePages huge_pages = HugePages::kOff;
  // Touches the pages from a background thread, so that no request pays for fresh memory (6 x the cost of a copy).
  bool prefault = true;
  // Refuses an arena that is larger than what the machine or the control group has left.
  bool check_memory = true;
  std::string name = "cairn-arena";  // Of the memfds, as /proc shows them.
};

struct HostTierStats {
  uint64_t asked_bytes = 0;      // Sum of the lengths asked for: used_bytes - asked_bytes is the waste inside extents.
  uint64_t largest_free_bytes = 0;  // The largest extent that Reserve can give now.
  uint64_t segments = 0;
  uint64_t empty_segments = 0;
  uint64_t prefaulted_bytes = 0;
  bool huge_pages = false;
};

class HostTier final : public Tier {
 public:
  struct Segment {
    int fd = -1;          // Owned by the tier.
    uint64_t offset = 0;  // In the arena: extents with offset <= id < offset + bytes lie here.
    uint64_t bytes = 0;
  };

  // INVALID_ARGUMENT naming the option; RESOURCE_EXHAUSTED naming the bytes asked for and what there is.
  static Result<std::unique_ptr<HostTier>> Create(const HostTierOptions& options);
  ~HostTier() override;  // Stops the prefault. REQUIRES: nobody uses mapped bytes.

  TierKind kind() const override { return TierKind::kHost; }
  Result<Extent> Reserve(uint32_t length) override;
  // Aborts on an extent that was not reserved here, or was released before: to go on would hand the bytes to two owners.
  void Release(const Extent& extent) override;
  // Copies and calls back inside the call. `record` is not kept.
  void Write(const Extent& extent, std::string_view record, std::span<const std::byte> source,
             IoCallback done) override;
  void Read(const Extent& extent, std::span<std::byte> destination, IoCallback done) override;
  std::span<std::byte> Map(const Extent& extent) override;
  uint32_t max_extent_bytes() const override;
  TierStats GetStats() const override;

  HostTierStats GetHostStats() const;
  size_t segment_count() const { return segments_.size(); }
  const Segment& segment(size_t index) const { return segments_[index]; }
  // Blocks until the background prefault has ended, for benchmarks.
  void WaitForPrefault();

 private:
  HostTier() = default;
  Status MapArena(const HostTierOptions& options, bool huge);
  void UnmapArena();
  void Prefault();

  // Constant after Create.
  std::byte* base_ = nullptr;
  uint64_t capacity_bytes_ = 0;
  uint64_t segment_bytes_ = 0;
  uint64_t reserved_address_bytes_ = 0;
  void* reserved_address_ = nullptr;
  bool huge_pages_ = false;
  std::vector<Segment> segments_;

  mutable Mutex mu_;
  std::unique_ptr<ExtentAllocator> allocator_ ABSL_GUARDED_BY(mu_);
  uint64_t asked_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t extents_ ABSL_GUARDED_BY(mu_) = 0;

  std::atomic<uint64_t> read_bytes_{0};
  std::atomic<uint64_t> written_bytes_{0};
  std::atomic<uint64_t> prefaulted_bytes_{0};
  std::atomic<bool> stop_prefault_{false};
  Mutex prefault_mu_;
  CondVar prefault_done_cv_;
  bool prefault_done_ ABSL_GUARDED_BY(prefault_mu_) = true;
  std::thread prefault_thread_;
};

}  // namespace cairn::cache
