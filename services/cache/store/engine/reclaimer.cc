#include "services/cache/store/engine/reclaimer.h"

#include <algorithm>

namespace cairn::cache {
namespace {

constexpr size_t kBlocksAtOnce = 512;  // Freed under one lock.

}  // namespace

void Reclaimer::Add(NamespacePtr ns) {
  {
    MutexLock lock(mu_);
    dropped_.push_back({std::move(ns)});
  }
  pump_.Kick();
}

void Reclaimer::Kick() {
  if (waiting() > 0) pump_.Kick();
}

bool Reclaimer::Step() {
  std::vector<NamespacePtr> dropped;
  {
    MutexLock lock(mu_);
    for (const Dropped& one : dropped_) dropped.push_back(one.ns);
  }
  bool progress = false;
  for (const NamespacePtr& ns : dropped) {
    writes_.ExpireIncomplete(*ns, /*all=*/true);
    BlockIndex::Reclaimed reclaimed;
    {
      NamespaceLock lock(*ns, context_.tiers);
      // Readers and copies under way have pins; no new one comes to a dropped namespace. A pin of a
      // process that was stopped may stay forever: it keeps its own path.
      reclaimed = ns->index.Reclaim(kBlocksAtOnce, &lock.released);
    }
    progress |= reclaimed != BlockIndex::Reclaimed::kPinned;
    Settle(ns, reclaimed);
  }
  return progress;
}

void Reclaimer::Settle(const NamespacePtr& ns, BlockIndex::Reclaimed reclaimed) {
  MutexLock lock(mu_);
  const auto it = std::find_if(dropped_.begin(), dropped_.end(),
                               [&](const Dropped& one) { return one.ns == ns; });
  if (it == dropped_.end()) return;
  if (reclaimed == BlockIndex::Reclaimed::kAll) {
    dropped_.erase(it);
  } else if (reclaimed == BlockIndex::Reclaimed::kPinned) {
    it->pinned = true;
    it->charge = {};
    it->charge =
        context_.memory.Take(MemoryItem::kLeases, ns->memory_bytes.load(std::memory_order_relaxed));
  }
}

uint64_t Reclaimer::MemoryBytes() const {
  uint64_t total = 0;
  MutexLock lock(mu_);
  for (const Dropped& one : dropped_) {
    if (!one.pinned) total += one.ns->memory_bytes.load(std::memory_order_relaxed);
  }
  return total;
}

size_t Reclaimer::waiting() const {
  MutexLock lock(mu_);
  return dropped_.size();
}

}  // namespace cairn::cache
