#include "services/cache/engine/reclaimer.h"

namespace cairn::cache {
namespace {

constexpr size_t kBlocksAtOnce = 512;  // Freed under one lock.

}  // namespace

void Reclaimer::Add(NamespacePtr ns) {
  {
    MutexLock lock(mu_);
    dropped_.push_back(std::move(ns));
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
    dropped = dropped_;
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
    if (reclaimed != BlockIndex::Reclaimed::kAll) continue;
    MutexLock lock(mu_);
    std::erase(dropped_, ns);
  }
  return progress;
}

uint64_t Reclaimer::MemoryBytes() const {
  uint64_t total = 0;
  MutexLock lock(mu_);
  for (const NamespacePtr& ns : dropped_) total += ns->memory_bytes.load(std::memory_order_relaxed);
  return total;
}

size_t Reclaimer::waiting() const {
  MutexLock lock(mu_);
  return dropped_.size();
}

}  // namespace cairn::cache
