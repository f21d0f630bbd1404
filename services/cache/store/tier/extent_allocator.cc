#include "services/cache/store/tier/extent_allocator.h"

#include <sys/mman.h>

#include <algorithm>

#include "cairn/common/status.h"

namespace cairn::cache {
namespace {

// Runs of the size's own class may be a little too short: this many are looked at before a larger
// run is split.
constexpr size_t kScan = 16;

}  // namespace

// Sizes below 8 pages have a class each. Above, the class is the exponent and the 3 bits below the
// leading one.
uint32_t ExtentAllocator::ClassOf(uint32_t pages) {
  constexpr uint32_t kLinear = 1u << kClassBits;
  if (pages < kLinear) return pages;
  const int exponent = static_cast<int>(std::bit_width(pages)) - 1;
  const uint32_t mantissa = (pages >> (exponent - kClassBits)) & (kLinear - 1);
  return (static_cast<uint32_t>(exponent - kClassBits + 1) << kClassBits) + mantissa;
}

ExtentAllocator::ExtentAllocator(const std::vector<uint32_t>& segment_pages) {
  uint64_t total = 0;
  for (uint32_t pages : segment_pages) {
    CAIRN_CHECK(pages > 0);
    segment_begin_.push_back(static_cast<uint32_t>(total));
    total += pages;
  }
  CAIRN_CHECK(total > 0 && total <= kPagesMask);
  total_pages_ = static_cast<uint32_t>(total);
  segment_pool_.assign(segment_pages.size(), 0);
  segment_used_.assign(segment_pages.size(), 0);
  pools_.emplace_back();
  segment_begin_.push_back(total_pages_);
  void* map = mmap(nullptr, total * sizeof(PageMeta), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CAIRN_CHECK(map != MAP_FAILED);
  meta_ = static_cast<PageMeta*>(map);
  // Lists are last in, first out: the lowest addresses, which are prefaulted first, are to be used
  // first.
  for (size_t i = segment_pages.size(); i-- > 0;) AddFree(segment_begin_[i], segment_pages[i]);
}

ExtentAllocator::~ExtentAllocator() { munmap(meta_, uint64_t{total_pages_} * sizeof(PageMeta)); }

uint32_t ExtentAllocator::SegmentOf(uint32_t page) const {
  const auto after = std::upper_bound(segment_begin_.begin(), segment_begin_.end(), page);
  return static_cast<uint32_t>(after - segment_begin_.begin()) - 1;
}

bool ExtentAllocator::IsWholeSegment(uint32_t page, uint32_t pages) const {
  const uint32_t segment = SegmentOf(page);
  return segment_begin_[segment] == page && segment_begin_[segment + 1] == page + pages;
}

void ExtentAllocator::SetRun(uint32_t page, uint32_t pages, uint32_t flags) {
  // The last page first: of a run of one page, the first page's flag must stay.
  meta_[page + pages - 1].run = pages | flags;
  meta_[page].run = pages | flags | kFirst;
}

void ExtentAllocator::AddFree(uint32_t page, uint32_t pages) {
  const uint32_t index = ClassOf(pages);
  Pool& pool = pools_[segment_pool_[SegmentOf(page)]];
  SetRun(page, pages, 0);
  meta_[page].slot = static_cast<uint32_t>(pool.free[index].size());
  pool.free[index].push_back(page);
  pool.nonempty[index / 64] |= uint64_t{1} << (index % 64);
  if (IsWholeSegment(page, pages)) ++empty_segments_;
}

void ExtentAllocator::RemoveFree(uint32_t page, uint32_t pages) {
  const uint32_t index = ClassOf(pages);
  Pool& pool = pools_[segment_pool_[SegmentOf(page)]];
  std::vector<uint32_t>& list = pool.free[index];
  const uint32_t slot = meta_[page].slot;
  list[slot] = list.back();
  meta_[list[slot]].slot = slot;
  list.pop_back();
  if (list.empty()) pool.nonempty[index / 64] &= ~(uint64_t{1} << (index % 64));
  if (IsWholeSegment(page, pages)) --empty_segments_;
}

std::optional<uint32_t> ExtentAllocator::FindFree(const Pool& pool, uint32_t pages) const {
  const uint32_t own = ClassOf(pages);
  const std::vector<uint32_t>& list = pool.free[own];
  const auto fits = [&](uint32_t page) { return (meta_[page].run & kPagesMask) >= pages; };
  const size_t scan = std::min(kScan, list.size());
  for (size_t i = 0; i < scan; ++i) {
    const uint32_t page = list[list.size() - 1 - i];
    if (fits(page)) return page;
  }
  // Every run of a larger class fits.
  for (uint32_t word = (own + 1) / 64; word < pool.nonempty.size(); ++word) {
    uint64_t bits = pool.nonempty[word];
    if (word == (own + 1) / 64) bits &= ~uint64_t{0} << ((own + 1) % 64);
    if (bits != 0) {
      return pool.free[word * 64 + static_cast<uint32_t>(std::countr_zero(bits))].back();
    }
  }
  for (size_t i = scan; i < list.size(); ++i) {
    const uint32_t page = list[list.size() - 1 - i];
    if (fits(page)) return page;
  }
  return std::nullopt;
}

std::optional<uint32_t> ExtentAllocator::Reserve(uint32_t pages, uint32_t pool) {
  CAIRN_CHECK(pages > 0 && pool < pools_.size());
  if (pages > total_pages_) return std::nullopt;
  const std::optional<uint32_t> found = FindFree(pools_[pool], pages);
  if (!found) return std::nullopt;
  const uint32_t page = *found;
  const uint32_t run = meta_[page].run & kPagesMask;
  RemoveFree(page, run);
  if (run > pages) AddFree(page + pages, run - pages);
  SetRun(page, pages, kReserved);
  used_pages_ += pages;
  segment_used_[SegmentOf(page)] += pages;
  return page;
}

bool ExtentAllocator::IsReserved(uint32_t page, uint32_t pages) const {
  return page < total_pages_ && meta_[page].run == (pages | kReserved | kFirst);
}

void ExtentAllocator::Release(uint32_t page, uint32_t pages) {
  CAIRN_CHECK(IsReserved(page, pages));
  used_pages_ -= pages;
  const uint32_t segment = SegmentOf(page);
  segment_used_[segment] -= pages;
  // The entries inside a merged run are stale; a second Release of the same page must not find the
  // old flags there.
  meta_[page].run = 0;
  meta_[page + pages - 1].run = 0;
  if (page > segment_begin_[segment] && (meta_[page - 1].run & kReserved) == 0) {
    const uint32_t before = meta_[page - 1].run & kPagesMask;
    RemoveFree(page - before, before);
    page -= before;
    pages += before;
  }
  const uint32_t end = page + pages;
  if (end < segment_begin_[segment + 1] && (meta_[end].run & kReserved) == 0) {
    const uint32_t after = meta_[end].run & kPagesMask;
    RemoveFree(end, after);
    meta_[end].run = 0;
    pages += after;
  }
  AddFree(page, pages);
}

uint32_t ExtentAllocator::AddPool() {
  pools_.emplace_back();
  return static_cast<uint32_t>(pools_.size() - 1);
}

void ExtentAllocator::SetPool(uint32_t segment, uint32_t pool) {
  CAIRN_CHECK(pool < pools_.size());
  if (segment_pool_[segment] == pool) return;
  std::vector<uint32_t> free_runs;
  for (uint32_t page = segment_begin_[segment]; page < segment_begin_[segment + 1];) {
    const uint32_t run = meta_[page].run;
    if ((run & kReserved) == 0) {
      free_runs.push_back(page);
      RemoveFree(page, run & kPagesMask);
    }
    page += run & kPagesMask;
  }
  segment_pool_[segment] = pool;
  for (const uint32_t page : free_runs) AddFree(page, meta_[page].run & kPagesMask);
}

bool ExtentAllocator::IsEmpty(uint32_t segment) const { return segment_used_[segment] == 0; }

uint32_t ExtentAllocator::largest_free_pages() const {
  uint32_t largest = 0;
  for (const Pool& pool : pools_) {
    for (uint32_t word = static_cast<uint32_t>(pool.nonempty.size()); word-- > 0;) {
      if (pool.nonempty[word] == 0) continue;
      const uint32_t index =
          word * 64 + 63 - static_cast<uint32_t>(std::countl_zero(pool.nonempty[word]));
      for (uint32_t page : pool.free[index]) {
        largest = std::max(largest, meta_[page].run & kPagesMask);
      }
      break;
    }
  }
  return largest;
}

void ExtentAllocator::CheckConsistency() const {
  uint64_t used = 0;
  uint64_t free_runs = 0;
  uint32_t empty = 0;
  for (size_t segment = 0; segment + 1 < segment_begin_.size(); ++segment) {
    bool before_free = false;
    const uint64_t used_before = used;
    const Pool& pool = pools_[segment_pool_[segment]];
    for (uint32_t page = segment_begin_[segment]; page < segment_begin_[segment + 1];) {
      const uint32_t run = meta_[page].run;
      const uint32_t pages = run & kPagesMask;
      CAIRN_CHECK((run & kFirst) != 0 && pages > 0);
      CAIRN_CHECK(page + pages <= segment_begin_[segment + 1]);
      CAIRN_CHECK((meta_[page + pages - 1].run & ~kFirst) == (run & ~kFirst));
      const bool is_free = (run & kReserved) == 0;
      if (is_free) {
        CAIRN_CHECK(!before_free);
        const auto& list = pool.free[ClassOf(pages)];
        CAIRN_CHECK(meta_[page].slot < list.size() && list[meta_[page].slot] == page);
        ++free_runs;
        if (IsWholeSegment(page, pages)) ++empty;
      } else {
        used += pages;
      }
      before_free = is_free;
      page += pages;
    }
    CAIRN_CHECK(used - used_before == segment_used_[segment]);
  }
  uint64_t listed = 0;
  for (const Pool& pool : pools_) {
    for (uint32_t i = 0; i < kClasses; ++i) {
      listed += pool.free[i].size();
      CAIRN_CHECK(((pool.nonempty[i / 64] >> (i % 64)) & 1) == (pool.free[i].empty() ? 0 : 1));
    }
  }
  CAIRN_CHECK(listed == free_runs && used == used_pages_ && empty == empty_segments_);
}

}  // namespace cairn::cache
