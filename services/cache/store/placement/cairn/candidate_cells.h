#pragma once
// The candidates of one tier, in a list for each group and age cell. Finds the least valuable cell
// without looking at candidates. Each step is O(1), but for a look over the groups or over the
// cells of one of them, when the cell that gave the last victim is empty. 16 bytes a candidate.
//
// Candidates that were used less than half a second ago are *fresh*: they come last, whatever they
// are worth. Else a request would take the beginning of its own path to store the rest.
//
// `density(group, cell)`: what a candidate of the cell is worth; the same between two calls of
// Revalue. Not thread-safe.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "services/cache/store/placement/cairn/age_cells.h"
#include "services/cache/store/placement/cairn/block_group.h"
#include "services/cache/store/placement/eviction_policy.h"

namespace cairn::cache {

class CandidateCells {
 public:
  struct Filed {
    uint32_t last_use;
    BlockGroup group;
  };

  bool Contains(CandidateId id) const { return id < links_.size() && links_[id].filed; }
  size_t size() const { return size_; }
  // REQUIRES: contains.
  Filed At(CandidateId id) const { return {links_[id].last_use, links_[id].group}; }

  // `cell`: the one that its last use falls into; nullopt: it is fresh.
  template <typename Density>
  void Add(CandidateId id, uint32_t last_use, BlockGroup group, std::optional<int> cell,
           Density&& density) {
    if (id >= links_.size()) links_.resize(id + 1);
    links_[id] = {.last_use = last_use, .group = group, .filed = true, .fresh = !cell};
    ++size_;
    if (!cell) {
      Append(id, &fresh_);
      return;
    }
    Append(id, &groups_[group].head[static_cast<size_t>(*cell)]);
    groups_[group].filled |= uint64_t{1} << *cell;
    const uint64_t bit = uint64_t{1} << group;
    if ((stale_ & bit) == 0 && density(group, *cell) < lowest_[group]) {
      lowest_[group] = density(group, *cell);
      lowest_cell_[group] = static_cast<uint8_t>(*cell);
      if (best_ != kNone && lowest_[group] < lowest_[best_]) best_ = group;
    }
  }

  // `cell`: the one that its last use falls into.
  void Remove(CandidateId id, int cell) {
    Link& link = links_[id];
    Group& of = groups_[link.group];
    uint32_t& head = link.fresh ? fresh_ : of.head[static_cast<size_t>(cell)];
    if (link.next == id) {
      head = kNone;
      if (!link.fresh) {
        of.filled &= ~(uint64_t{1} << cell);
        if (lowest_cell_[link.group] == cell) MakeStale(link.group);
      }
    } else {
      links_[link.next].previous = link.previous;
      links_[link.previous].next = link.next;
      if (head == id) head = link.next;
    }
    link.filed = false;
    if (--size_ == 0 && links_.capacity() > kKeptLinks) links_ = {};
  }

  // The fresh candidate that entered first.
  std::optional<CandidateId> FirstFresh() const {
    return fresh_ == kNone ? std::nullopt : std::optional<CandidateId>(fresh_);
  }

  // All of a cell joins another.
  void Join(int from, int into) {
    for (size_t group = 0; group < groups_.size(); ++group) {
      Group& of = groups_[group];
      const uint32_t head = of.head[static_cast<size_t>(from)];
      if (head == kNone) continue;
      uint32_t& target = of.head[static_cast<size_t>(into)];
      if (target == kNone) {
        target = head;
      } else {
        // A candidate that joins is younger, so it goes to the end.
        const uint32_t last = links_[target].previous, from_last = links_[head].previous;
        links_[last].next = head;
        links_[head].previous = last;
        links_[from_last].next = target;
        links_[target].previous = from_last;
      }
      of.head[static_cast<size_t>(from)] = kNone;
      of.filled &= ~(uint64_t{1} << from);
      of.filled |= uint64_t{1} << into;
    }
  }

  // Densities or cells have changed.
  void Revalue() {
    stale_ = (uint64_t{1} << kGroupCount) - 1;
    best_ = kNone;
  }

  // The oldest candidate of the least valuable cell; a fresh one if there are no others.
  template <typename Density>
  std::optional<CandidateId> Lowest(Density&& density) {
    for (; stale_ != 0; stale_ &= stale_ - 1) {
      FindLowest(static_cast<BlockGroup>(std::countr_zero(stale_)), density);
    }
    if (best_ == kNone) {
      best_ =
          static_cast<uint32_t>(std::min_element(lowest_.begin(), lowest_.end()) - lowest_.begin());
    }
    const Group& best = groups_[best_];
    return best.filled == 0 ? FirstFresh() : best.head[lowest_cell_[best_]];
  }

  size_t MemoryBytes() const { return links_.capacity() * sizeof(Link); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kKeptLinks = 1024;
  struct Link {
    uint32_t next = 0, previous = 0;
    uint32_t last_use = 0;
    BlockGroup group = 0;
    bool filed = false;
    bool fresh = false;
  };
  static_assert(sizeof(Link) == 16);
  struct Group {
    Group() { head.fill(kNone); }
    std::array<uint32_t, AgeCells::kCells> head;  // The oldest of each cell; a ring.
    uint64_t filled = 0;                          // A bit for each cell.
  };
  static_assert(AgeCells::kCells <= 64 && kGroupCount < 64);

  void MakeStale(BlockGroup group) {
    stale_ |= uint64_t{1} << group;
    best_ = kNone;
  }

  void Append(CandidateId id, uint32_t* head) {
    Link& link = links_[id];
    if (*head == kNone) {
      link.next = link.previous = *head = id;
    } else {
      link.next = *head;
      link.previous = links_[*head].previous;
      links_[link.previous].next = id;
      links_[*head].previous = id;
    }
  }

  template <typename Density>
  void FindLowest(BlockGroup group, Density&& density) {
    lowest_[group] = std::numeric_limits<float>::infinity();
    for (uint64_t left = groups_[group].filled; left != 0; left &= left - 1) {
      const int cell = std::countr_zero(left);
      if (density(group, cell) >= lowest_[group]) continue;
      lowest_[group] = density(group, cell);
      lowest_cell_[group] = static_cast<uint8_t>(cell);
    }
  }

  std::array<Group, kGroupCount> groups_;
  std::vector<Link> links_;  // By candidate.
  // The least valuable cell of each group; infinity: it has no candidates.
  std::array<float, kGroupCount> lowest_{};
  std::array<uint8_t, kGroupCount> lowest_cell_{};
  uint64_t stale_ = (uint64_t{1} << kGroupCount) - 1;  // Groups to look through again.
  uint32_t best_ = kNone;  // The group with the lowest of them; kNone: look again.
  uint32_t fresh_ = kNone;
  size_t size_ = 0;
};

}  // namespace cairn::cache
