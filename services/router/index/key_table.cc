#include "services/router/index/key_table.h"

#include <algorithm>
#include <bit>
#include <new>

namespace cairn::router {
namespace {

constexpr uint32_t kLeastEntries = 64;

template <typename T>
T* Zeroed(size_t count) {
  // Not a vector, which would touch all of it.
  void* const memory = std::calloc(count, sizeof(T));
  if (memory == nullptr) throw std::bad_alloc();
  return static_cast<T*>(memory);
}

}  // namespace

KeyTable::KeyTable(size_t max_bytes) {
  // The largest power of two of places that leaves them at most three quarters full, within the
  // bytes.
  uint64_t best = 0;
  for (uint64_t places = 128; places <= uint64_t{1} << 32; places *= 2) {
    const uint64_t for_places = places * sizeof(uint32_t);
    if (for_places >= max_bytes) break;
    const uint64_t entries = std::min((max_bytes - for_places) / sizeof(Entry), places / 4 * 3);
    if (entries > best) {
      best = entries;
      place_mask_ = places - 1;
    }
  }
  if (best < kLeastEntries) {
    best = kLeastEntries;
    place_mask_ = 127;
  }
  capacity_ = static_cast<uint32_t>(std::min<uint64_t>(best, kNone - 1));
  entries_.reset(Zeroed<Entry>(capacity_));
  places_.reset(Zeroed<uint32_t>(place_mask_ + 1));
}

size_t KeyTable::bytes() const {
  return size_ * sizeof(Entry) + (place_mask_ + 1) * sizeof(uint32_t) * size_ / capacity_;
}

uint32_t KeyTable::Find(uint64_t hash) const {
  for (uint64_t place = hash & place_mask_;; place = (place + 1) & place_mask_) {
    const uint32_t number = places_[place];
    if (number == 0) return kNone;
    if (entries_[number - 1].hash == hash) return number - 1;
  }
}

size_t KeyTable::PlaceOf(uint32_t number) const {
  uint64_t place = entries_[number].hash & place_mask_;
  while (places_[place] != number + 1) place = (place + 1) & place_mask_;
  return place;
}

uint32_t KeyTable::Insert(uint64_t hash, uint32_t group, uint32_t behind) {
  if (size_ == capacity_) {
    const uint32_t leaving = oldest_ == behind ? entries_[oldest_].newer : oldest_;
    evicted_group_ = entries_[leaving].group;
    Erase(leaving);
    ++evicted_;
  }
  uint32_t number = free_;
  if (number != kNone) {
    free_ = entries_[number].older;
  } else {
    number = used_++;
  }
  ++size_;
  entries_[number] = {
      .hash = hash, .mask = {}, .newer = kNone, .older = kNone, .group = group, .unused = 0};
  if (behind == kNone) {
    LinkNewest(number);
  } else {
    Entry& entry = entries_[number];
    entry.newer = behind;
    entry.older = entries_[behind].older;
    entries_[behind].older = number;
    if (entry.older == kNone) {
      oldest_ = number;
    } else {
      entries_[entry.older].newer = number;
    }
  }
  uint64_t place = hash & place_mask_;
  while (places_[place] != 0) place = (place + 1) & place_mask_;
  places_[place] = number + 1;
  return number;
}

void KeyTable::Erase(uint32_t number) {
  // Knuth's algorithm R (TAOCP 3, 6.4): moves up what probed past the hole.
  uint64_t hole = PlaceOf(number);
  places_[hole] = 0;
  for (uint64_t place = (hole + 1) & place_mask_; places_[place] != 0;
       place = (place + 1) & place_mask_) {
    const uint64_t home = entries_[places_[place] - 1].hash & place_mask_;
    if (((place - home) & place_mask_) < ((place - hole) & place_mask_)) continue;
    places_[hole] = places_[place];
    places_[place] = 0;
    hole = place;
  }
  Unlink(number);
  entries_[number].group = kNone;
  entries_[number].older = free_;
  free_ = number;
  --size_;
}

void KeyTable::Touch(uint32_t number) {
  if (newest_ == number) return;
  Unlink(number);
  LinkNewest(number);
}

void KeyTable::Unlink(uint32_t number) {
  const Entry& entry = entries_[number];
  (entry.newer == kNone ? newest_ : entries_[entry.newer].older) = entry.older;
  (entry.older == kNone ? oldest_ : entries_[entry.older].newer) = entry.newer;
}

void KeyTable::LinkNewest(uint32_t number) {
  Entry& entry = entries_[number];
  entry.newer = kNone;
  entry.older = newest_;
  (newest_ == kNone ? oldest_ : entries_[newest_].newer) = number;
  newest_ = number;
}

}  // namespace cairn::router
