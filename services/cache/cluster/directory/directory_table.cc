#include "services/cache/cluster/directory/directory_table.h"

#include <algorithm>

namespace cairn::cache {
namespace {

// A flat_hash_map is between 7/16 and 7/8 full.
constexpr uint64_t kEntryBytes = 40;

}  // namespace

DirectoryTable::DirectoryTable(uint64_t max_bytes)
    : max_shard_entries_(std::max<uint64_t>(2, max_bytes / kEntryBytes / kShards)),
      shards_(std::make_unique<std::array<Shard, kShards>>()),
      alive_(std::make_unique<std::array<std::atomic<uint64_t>, kAliveWords>>()) {}

HolderNumber DirectoryTable::NewHolder() {
  MutexLock lock(mu_);
  HolderNumber number = 0;
  if (!free_.empty()) {
    number = free_.back();
    free_.pop_back();
  } else if (next_number_ <= kMostNumbers) {
    number = next_number_++;
  }
  if (number != 0) (*alive_)[number / 64].fetch_or(Bit(number), std::memory_order_relaxed);
  return number;
}

void DirectoryTable::RemoveHolder(HolderNumber holder) {
  MutexLock lock(mu_);
  const uint64_t before = (*alive_)[holder / 64].fetch_and(~Bit(holder), std::memory_order_relaxed);
  if ((before & Bit(holder)) != 0) removed_.push_back(holder);
}

bool DirectoryTable::SweepSome() {
  size_t at = 0;
  {
    MutexLock lock(mu_);
    // Whoever was removed after the round began may have entries in shards that it has passed.
    if (next_shard_ == 0) {
      if (removed_.empty()) return true;
      sweeping_.swap(removed_);
    }
    at = next_shard_;
  }
  {
    Shard& shard = (*shards_)[at];
    MutexLock lock(shard.mu);
    SweepMap(shard.recent);
    SweepMap(shard.old);
    SweepMap(shard.more);
    FillUp(shard);
  }
  MutexLock lock(mu_);
  next_shard_ = (at + 1) % kShards;
  if (next_shard_ != 0) return false;
  free_.insert(free_.end(), sweeping_.begin(), sweeping_.end());
  sweeping_.clear();
  return removed_.empty();
}

void DirectoryTable::SweepMap(Map& map) const {
  for (auto it = map.begin(); it != map.end();) {
    Slots& slots = it->second;
    for (Packed& packed : slots) {
      if (packed != 0 && !alive(Unpack(packed).holder)) packed = 0;
    }
    const auto at = it++;
    if (Empty(slots)) map.erase(at);
  }
}

void DirectoryTable::FillUp(Shard& shard) const {
  for (auto it = shard.more.begin(); it != shard.more.end();) {
    const auto at = it++;
    const auto old = shard.old.find(at->first);
    // The sweep removes a waymark whose first four have gone.
    Slots& slots = old != shard.old.end() ? old->second : shard.recent[at->first];
    for (Packed& packed : at->second) {
      if (packed != 0 && Put(slots, Unpack(packed))) packed = 0;
    }
    if (Empty(at->second)) shard.more.erase(at);
  }
}

bool DirectoryTable::Change(Slots& slots, HolderEntry entry) {
  for (Packed& packed : slots) {
    if (packed != 0 && Unpack(packed).holder == entry.holder) {
      packed = Pack(entry);
      return true;
    }
  }
  return false;
}

bool DirectoryTable::Put(Slots& slots, HolderEntry entry) const {
  const auto free = std::find_if(slots.begin(), slots.end(), [this](Packed packed) {
    return packed == 0 || !alive(Unpack(packed).holder);
  });
  if (free == slots.end()) return false;
  *free = Pack(entry);
  return true;
}

bool DirectoryTable::Clear(Slots& slots, HolderNumber holder) {
  for (Packed& packed : slots) {
    if (packed != 0 && Unpack(packed).holder == holder) {
      packed = 0;
      return true;
    }
  }
  return false;
}

bool DirectoryTable::Empty(const Slots& slots) { return slots == Slots{}; }

void DirectoryTable::Add(WaymarkHash hash, HolderEntry entry, HolderNumber instead) {
  Shard& shard = ShardOf(hash);
  MutexLock lock(shard.mu);
  auto it = shard.recent.find(hash);
  if (it == shard.recent.end()) {
    const auto old = shard.old.find(hash);
    if (old != shard.old.end()) {
      const Slots slots = old->second;
      shard.old.erase(old);
      it = shard.recent.emplace(hash, slots).first;
    } else {
      if (shard.recent.size() >= max_shard_entries_ / 2) {
        forgotten_.fetch_add(shard.old.size(), std::memory_order_relaxed);
        for (const auto& [gone, slots] : shard.old) shard.more.erase(gone);
        shard.old = std::exchange(shard.recent, Map());
      }
      it = shard.recent.emplace(hash, Slots{}).first;
    }
  }
  if (Change(it->second, entry)) return;
  const auto more = shard.more.find(hash);
  if (more != shard.more.end() && Change(more->second, entry)) return;
  if (Put(it->second, entry)) return;
  Slots& further = shard.more[hash];
  if (Put(further, entry)) return;
  for (Slots* const slots : {&it->second, &further}) {
    if (instead != 0 && Clear(*slots, instead) && Put(*slots, entry)) return;
  }
  // News is worth more: whoever has just got the block will keep it longest.
  std::rotate(further.begin(), further.begin() + 1, further.end());
  further.back() = Pack(entry);
}

void DirectoryTable::Remove(WaymarkHash hash, HolderNumber holder) {
  Shard& shard = ShardOf(hash);
  MutexLock lock(shard.mu);
  Map* map = &shard.recent;
  auto it = map->find(hash);
  if (it == map->end()) {
    map = &shard.old;
    it = map->find(hash);
    if (it == map->end()) return;
  }
  const auto more = shard.more.find(hash);
  if (!Clear(it->second, holder)) {
    if (more == shard.more.end() || !Clear(more->second, holder)) return;
  }
  if (more != shard.more.end()) {
    // The first ones stay full, so that `more` can go.
    for (Packed& packed : more->second) {
      if (packed != 0 && Put(it->second, Unpack(packed))) packed = 0;
    }
    if (Empty(more->second)) shard.more.erase(more);
  }
  if (Empty(it->second)) map->erase(it);
}

HolderEntries DirectoryTable::Find(WaymarkHash hash) const {
  HolderEntries found;
  const auto collect = [&](const Map& map) {
    const auto it = map.find(hash);
    if (it == map.end()) return;
    for (const Packed packed : it->second) {
      if (packed != 0 && alive(Unpack(packed).holder)) found.push_back(Unpack(packed));
    }
  };
  const Shard& shard = ShardOf(hash);
  {
    MutexLock lock(shard.mu);
    collect(shard.recent);
    collect(shard.old);
    collect(shard.more);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const HolderEntry& a, const HolderEntry& b) { return a.tier < b.tier; });
  return found;
}

uint64_t DirectoryTable::entries() const {
  uint64_t total = 0;
  for (const Shard& shard : *shards_) {
    MutexLock lock(shard.mu);
    total += shard.recent.size() + shard.old.size();
  }
  return total;
}

uint64_t DirectoryTable::bytes() const {
  uint64_t total = sizeof(*shards_) + sizeof(*alive_);
  for (const Shard& shard : *shards_) {
    MutexLock lock(shard.mu);
    total += Bytes(shard.recent) + Bytes(shard.old) + Bytes(shard.more);
  }
  return total;
}

}  // namespace cairn::cache
