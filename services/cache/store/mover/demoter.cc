#include "services/cache/store/mover/demoter.h"

#include "services/cache/store/mover/promoters.h"

namespace cairn::cache {
namespace {

// The tier is nearly full when less than this part of it is free.
constexpr uint64_t kFreePart = 8;

Tier* FasterThanHost(const Tiers& tiers) {
  for (const TierKind kind : tiers.kinds()) {
    if (Faster(kind, TierKind::kHost)) return tiers.Get(kind);
  }
  return nullptr;
}

}  // namespace

Demoter::Demoter(NodeContext* context)
    : context_(*context), fast_(FasterThanHost(context->tiers)) {}

void Demoter::Note(NamespaceState& ns, const BlockKey& key) {
  if (fast_ == nullptr) return;
  ns.mu.AssertHeld();
  const auto ref = ns.index.FindAlive(key);
  if (!ref || !ns.index.MetaAt(*ref).in(fast_->kind())) return;
  const uint32_t bytes = ns.index.MetaAt(*ref).bytes_in(fast_->kind());
  const uint64_t most = fast_->GetStats().capacity_bytes / 2;
  {
    MutexLock lock(mu_);
    if (bytes_ + bytes > most) return;
    bytes_ += bytes;
    entries_.push_back({ns.fingerprint, key, bytes, 0});
  }
  ns.index.SetDirty(*ref, fast_->kind(), true);
}

void Demoter::Tick(Promoters* promoters) {
  if (fast_ == nullptr) return;
  const TierStats stats = fast_->GetStats();
  const bool now = stats.used_bytes + stats.capacity_bytes / kFreePart > stats.capacity_bytes;
  size_t left;
  {
    MutexLock lock(mu_);
    left = std::min(entries_.size(), kAtOnce);
  }
  for (; left > 0; --left) {
    Entry entry;
    {
      MutexLock lock(mu_);
      if (entries_.empty()) break;
      entry = entries_.front();
      entries_.pop_front();
    }
    const bool stays = Look(&entry, now, promoters);
    MutexLock lock(mu_);
    if (stays) {
      entries_.push_back(entry);
    } else {
      bytes_ -= entry.bytes;
    }
  }
  promoters->IntoHost(fast_->kind())->Kick();
}

bool Demoter::Look(Entry* entry, bool now, Promoters* promoters) {
  const NamespacePtr ns = context_.registry.Find(entry->fingerprint);
  if (ns == nullptr) return false;
  const TierKind kind = fast_->kind();
  {
    NamespaceLock lock(*ns, context_.tiers);
    const auto ref = ns->index.FindAlive(entry->key);
    if (ns->dropped.load(std::memory_order_relaxed) || !ref) return false;
    const BlockMeta& meta = ns->index.MetaAt(*ref);
    if (!meta.in(kind) || !meta.dirty_in(kind)) return false;
    if (meta.in(TierKind::kHost) || entry->attempts >= kMaxAttempts) {
      ns->index.SetDirty(*ref, kind, false);
      return false;
    }
  }
  Promoter& promoter = *promoters->IntoHost(kind);
  if (!now || promoter.IsPending(*ns, entry->key)) return true;
  const MoveQueue::Wanted wanted{entry->key, entry->bytes};
  ++entry->attempts;
  // The node itself waits for it.
  promoter.Request(ns, {&wanted, 1}, MovePriority::kRebalance, ns);
  return true;
}

}  // namespace cairn::cache
