#pragma once
// Entries with a mask each, by a hash, in the order of their last use, in a bounded memory.
//
//   places: 0 7 0 3 0 ...    open addressing, linear probing; an entry's number plus one
//              │
//              ▼
//   entries: { hash, group, mask, newer, older }   a doubly linked list of numbers
//
// Both arrays have their full size from the beginning. The system gives memory as it is touched.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>

#include "services/router/index/holder_bits.h"

namespace cairn::router {

// Not thread-safe.
class KeyTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Entry {
    uint64_t hash;
    Bits mask;
    uint32_t newer, older;  // kNone at the ends. In a free entry, `older` is the next free one.
    uint32_t group;         // kNone: the entry is free.
    uint32_t unused;
  };

  // Room for at least 64 entries, also if that is more than `max_bytes`.
  explicit KeyTable(size_t max_bytes);

  // An entry's number, or kNone. It is good until the next Insert or Erase.
  uint32_t Find(uint64_t hash) const;
  // Where Find would look first, for prefetching.
  void Prefetch(uint64_t hash) const { __builtin_prefetch(&places_[hash & place_mask_]); }
  // The hash must not be there. The entry becomes the newest one, or, with `behind`, the one right
  // behind that. If there is no room, the oldest one leaves.
  uint32_t Insert(uint64_t hash, uint32_t group, uint32_t behind);
  void Erase(uint32_t number);
  // The entry becomes the newest one.
  void Touch(uint32_t number);

  Entry& at(uint32_t number) { return entries_[number]; }
  const Entry& at(uint32_t number) const { return entries_[number]; }
  bool taken(uint32_t number) const { return number < used_ && entries_[number].group != kNone; }

  uint32_t size() const { return size_; }
  uint32_t capacity() const { return capacity_; }
  // Bytes of the entries that are taken and of their share of the places.
  size_t bytes() const;
  // Numbers below this one may be taken.
  uint32_t end() const { return used_; }
  uint64_t evicted() const { return evicted_; }
  // The group of the entry that left last, to be asked after an Insert that changed evicted().
  uint32_t evicted_group() const { return evicted_group_; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  void Unlink(uint32_t number);
  void LinkNewest(uint32_t number);
  size_t PlaceOf(uint32_t number) const;

  uint32_t capacity_ = 0;
  uint64_t place_mask_ = 0;
  std::unique_ptr<Entry[], Free> entries_;
  std::unique_ptr<uint32_t[], Free> places_;
  uint32_t used_ = 0;  // Entries that were ever taken.
  uint32_t size_ = 0;
  uint32_t free_ = kNone;
  uint32_t newest_ = kNone, oldest_ = kNone;
  uint64_t evicted_ = 0;
  uint32_t evicted_group_ = kNone;
};

}  // namespace cairn::router
