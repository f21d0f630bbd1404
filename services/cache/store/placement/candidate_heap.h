#pragma once
// A binary heap of eviction candidates, lowest rank on top, that can remove and re-rank from the
// middle.
//
// The candidate itself keeps its position (a tree node keeps one u32 per heap), so the heap needs
// no map of its own. It reports every move to `set_position(id, position)`. O(log n) per operation.
// Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cairn::cache {

class CandidateHeap {
 public:
  static constexpr uint32_t kNotInHeap = UINT32_MAX;
  struct Entry {
    uint64_t rank;
    uint32_t id;
  };

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  const Entry& top() const { return entries_.front(); }
  uint64_t RankAt(uint32_t position) const { return entries_[position].rank; }
  size_t MemoryBytes() const { return entries_.capacity() * sizeof(Entry); }

  template <typename SetPosition>
  void Push(uint32_t id, uint64_t rank, SetPosition&& set_position) {
    entries_.push_back({rank, id});
    SiftUp(entries_.size() - 1, set_position);
  }

  template <typename SetPosition>
  void Remove(uint32_t position, SetPosition&& set_position) {
    set_position(entries_[position].id, kNotInHeap);
    const Entry last = entries_.back();
    entries_.pop_back();
    const bool large = entries_.capacity() > 64 && entries_.size() < entries_.capacity() / 4;
    if (large || entries_.empty()) {
      entries_.shrink_to_fit();
    }
    if (position == entries_.size()) return;
    entries_[position] = last;
    Restore(position, set_position);
  }

  template <typename SetPosition>
  void Update(uint32_t position, uint64_t rank, SetPosition&& set_position) {
    entries_[position].rank = rank;
    Restore(position, set_position);
  }

 private:
  template <typename SetPosition>
  void Restore(size_t position, SetPosition&& set_position) {
    if (position > 0 && entries_[position].rank < entries_[(position - 1) / 2].rank) {
      SiftUp(position, set_position);
    } else {
      SiftDown(position, set_position);
    }
  }

  template <typename SetPosition>
  void SiftUp(size_t position, SetPosition&& set_position) {
    const Entry entry = entries_[position];
    while (position > 0) {
      const size_t parent = (position - 1) / 2;
      if (entries_[parent].rank <= entry.rank) break;
      entries_[position] = entries_[parent];
      set_position(entries_[position].id, static_cast<uint32_t>(position));
      position = parent;
    }
    entries_[position] = entry;
    set_position(entry.id, static_cast<uint32_t>(position));
  }

  template <typename SetPosition>
  void SiftDown(size_t position, SetPosition&& set_position) {
    const Entry entry = entries_[position];
    for (;;) {
      size_t child = 2 * position + 1;
      if (child >= entries_.size()) break;
      if (child + 1 < entries_.size() && entries_[child + 1].rank < entries_[child].rank) ++child;
      if (entry.rank <= entries_[child].rank) break;
      entries_[position] = entries_[child];
      set_position(entries_[position].id, static_cast<uint32_t>(position));
      position = child;
    }
    entries_[position] = entry;
    set_position(entry.id, static_cast<uint32_t>(position));
  }

  std::vector<Entry> entries_;
};

}  // namespace cairn::cache
