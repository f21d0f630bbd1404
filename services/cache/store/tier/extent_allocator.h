#pragma once
// Knows which pages of the arena are in use: a segregated-fit allocator of pages, similar to TLSF
// (Masmano et al., "TLSF: a New Dynamic Memory Allocator for Real-Time Systems", 2004).
//
// Free runs of pages are kept in lists by size class, 8 classes per doubling. Reserve takes the
// smallest class that fits and splits; Release merges with free neighbours at once. So no slab of
// one class can starve another class, a length is rounded up only to whole pages, and an empty
// segment is one free run again, which is split last.
//
// Why not slabs per size class: an arena of few segments could hold few sizes, and a part of 40 MiB
// would waste a third of its segment.
//
// Segments belong to pools: a Reserve takes pages of one pool only. All segments begin in pool 0;
// SetPool moves one, with everything that is reserved in it. The tier decides who gets which
// segments.
//
// Metadata: 8 bytes per page (0.2 %), touched only at the beginnings and ends of runs. All
// operations are O(1), but a Reserve that is about to fail walks one list. Thread-compatible.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace cairn::cache {

class ExtentAllocator {
 public:
  // Pages of every segment; runs never span segments. Pages are numbered through. At most 2^30
  // pages in all.
  explicit ExtentAllocator(const std::vector<uint32_t>& segment_pages);
  ~ExtentAllocator();
  ExtentAllocator(const ExtentAllocator&) = delete;
  ExtentAllocator& operator=(const ExtentAllocator&) = delete;

  // Returns the first page of a run of `pages` >= 1. Nothing: no free run of the pool is long
  // enough.
  std::optional<uint32_t> Reserve(uint32_t pages, uint32_t pool = 0);
  // True when `page` begins a reserved run of `pages`.
  bool IsReserved(uint32_t page, uint32_t pages) const;
  // REQUIRES: IsReserved(page, pages).
  void Release(uint32_t page, uint32_t pages);

  // A new pool, without segments. 6 KiB.
  uint32_t AddPool();
  uint32_t pool_of(uint32_t segment) const { return segment_pool_[segment]; }
  // O(runs of the segment).
  void SetPool(uint32_t segment, uint32_t pool);
  bool IsEmpty(uint32_t segment) const;
  uint32_t used_pages_in(uint32_t segment) const { return segment_used_[segment]; }

  uint32_t largest_free_pages() const;
  uint64_t used_pages() const { return used_pages_; }
  uint32_t empty_segments() const { return empty_segments_; }
  // Aborts unless the runs tile the segments, no two free runs touch and every list is right. For
  // tests.
  void CheckConsistency() const;

 private:
  // Valid for the first and the last page of a run; the entries between are stale.
  struct PageMeta {
    uint32_t run;   // Pages of the run, and the flags below.
    uint32_t slot;  // First page of a free run: its index in its pool's list.
  };
  static constexpr uint32_t kReserved = 1u << 31;
  static constexpr uint32_t kFirst = 1u << 30;
  static constexpr uint32_t kPagesMask = kFirst - 1;
  static constexpr int kClassBits = 3;  // 8 classes per doubling.
  static constexpr uint32_t kClasses = 256;

  static uint32_t ClassOf(uint32_t pages);
  struct Pool {
    std::array<std::vector<uint32_t>, kClasses> free;
    std::array<uint64_t, kClasses / 64> nonempty{};
  };

  uint32_t SegmentOf(uint32_t page) const;
  void SetRun(uint32_t page, uint32_t pages, uint32_t flags);
  void AddFree(uint32_t page, uint32_t pages);
  void RemoveFree(uint32_t page, uint32_t pages);
  std::optional<uint32_t> FindFree(const Pool& pool, uint32_t pages) const;
  bool IsWholeSegment(uint32_t page, uint32_t pages) const;

  PageMeta* meta_ = nullptr;  // total_pages_ entries, zero pages until touched.
  uint32_t total_pages_ = 0;
  std::vector<uint32_t> segment_begin_;  // And the end of the last one.
  std::vector<uint32_t> segment_pool_;
  std::vector<uint32_t> segment_used_;  // Reserved pages.
  std::vector<Pool> pools_;
  uint64_t used_pages_ = 0;
  uint32_t empty_segments_ = 0;
};

}  // namespace cairn::cache
