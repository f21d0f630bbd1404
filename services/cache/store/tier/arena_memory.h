#pragma once
// The memory of the host tier: one range of addresses, in which each segment maps a memfd of its
// own, so that it can be handed to another process. A memfd is sealed against resizing, so that no
// holder of the descriptor can pull pages from under us.
//
// A segment gets fresh memory in two ways: Punch gives the pages back and keeps the memfd; Replace
// maps another memfd. Others may still map the memory that was replaced. It is bounded
// (segment_memory.h), so not every memory can be replaced at any time.
//
// Thread-safe, but for one segment: nobody asks for it during its Punch or Replace.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "services/cache/store/tier/prefault.h"
#include "services/cache/store/tier/segment_grid.h"
#include "services/cache/store/tier/segment_memory.h"
#include "services/cache/store/tier/segment_owners.h"

namespace cairn::cache {

// The size of the segments of an arena. `wanted`: ArenaOptions::segment_bytes.
uint64_t HostSegmentBytes(uint64_t wanted, uint64_t capacity);

struct ArenaOptions {
  enum class HugePages : uint8_t {
    kOff,
    kTry,      // Where pages of 2 MiB are reserved for all of the arena; else 4 KiB pages.
    kRequire,  // FAILED_PRECONDITION where they are not.
  };

  uint64_t capacity_bytes = 0;  // Rounded down to pages. At least one page.
  // Bytes of a segment, a multiple of 2 MiB up to 2 GiB. 0: 64 MiB, doubled until the arena has at
  // most 512 segments, or the whole arena where that is smaller. The largest extent is one segment.
  uint64_t segment_bytes = 0;
  HugePages huge_pages = HugePages::kOff;
  // Touches the pages from a background thread, so that no request pays for fresh memory (6 x the
  // cost of a copy).
  bool prefault = true;
  // Refuses an arena that is larger than what the machine or the control group has left.
  bool check_memory = true;
  uint32_t max_owners = 256;
  std::string name = "cairn-arena";  // The prefix of the memfds' names in /proc.
};

class ArenaMemory final : public SegmentMemories {
 public:
  // INVALID_ARGUMENT naming the option; RESOURCE_EXHAUSTED naming the bytes asked for and what
  // there is.
  static Result<std::unique_ptr<ArenaMemory>> Create(const ArenaOptions& options);
  // Bytes that replaced memory may take beyond the capacity. `segment_bytes` as in the options.
  static uint64_t RetiredLimit(uint64_t capacity_bytes, uint64_t segment_bytes);
  ~ArenaMemory();

  const SegmentGrid& grid() const { return grid_; }
  bool huge_pages() const { return huge_pages_; }
  std::byte* base() const { return base_; }
  std::span<std::byte> Segment(uint32_t index) const {
    return {base_ + grid_.OffsetOf(index), grid_.BytesOf(index)};
  }
  // The segment in which all of the bytes lie.
  std::optional<uint32_t> SegmentAt(std::span<const std::byte> bytes) const;
  int fd(uint32_t index) const { return fds_[index]; }

  // SegmentMemories:
  bool IsThere(uint32_t index) const override { return fds_[index] >= 0; }
  bool CanReplace(uint32_t index, bool lent) override;
  bool IsStuck(uint32_t index) const override;
  Status Seal(const SegmentPlace& place) override;
  Result<int> Open(uint32_t index) override { return OpenForOthers(fds_[index]); }

  // False: it is sealed against writing.
  bool Punch(uint32_t index) { return PunchAll(fds_[index], grid_.BytesOf(index)); }
  // `lent`: others could write the old memory, so it is not sealed. False: there is no memory, or
  // no room for what is replaced.
  bool Replace(uint32_t index, bool lent);
  // Forgets replaced memory that nobody maps any more.
  void SweepRetired() {
    MutexLock lock(mu_);
    retired_.Sweep();
  }
  uint64_t retired_bytes() const {
    MutexLock lock(mu_);
    return retired_.bytes();
  }

  // Touches the pages of the segment's new memory from the background.
  void PrefaultAgain(uint32_t index) { prefault_.Again(index); }
  void WaitForPrefault() { prefault_.WaitForFirst(); }
  uint64_t prefaulted_bytes() const { return prefault_.bytes(); }

 private:
  explicit ArenaMemory(std::string name) : name_(std::move(name)) {}
  Status MapArena(const ArenaOptions& options, bool huge);
  // Fresh memory for the segment, in place of what is mapped there now. The descriptor of the old
  // memory is overwritten, but stays open.
  Status MapSegment(uint32_t index, bool huge);
  void UnmapArena();

  const std::string name_;
  // Constant after Create.
  SegmentGrid grid_;
  std::byte* base_ = nullptr;
  void* reserved_address_ = nullptr;
  uint64_t reserved_address_bytes_ = 0;
  bool huge_pages_ = false;
  std::vector<int> fds_;  // By segment; -1: new memory could not be had. Replace changes one.
  mutable Mutex mu_;
  RetiredMemories retired_ ABSL_GUARDED_BY(mu_);
  Prefault prefault_;
};

}  // namespace cairn::cache
