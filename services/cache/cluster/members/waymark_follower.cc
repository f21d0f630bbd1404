#include "services/cache/cluster/members/waymark_follower.h"

#include <optional>

namespace cairn::cache {
namespace {

constexpr size_t kAtOnce = 1024;

uint8_t Bit(TierKind tier) { return static_cast<uint8_t>(1u << static_cast<unsigned>(tier)); }

TierClass ClassOf(uint8_t tiers) {
  return (tiers & ~Bit(TierKind::kDisk)) != 0 ? TierClass::kMemory : TierClass::kDisk;
}

}  // namespace

bool WaymarkFollower::Step() {
  if (queue_ == nullptr) {
    auto queue = engine_.Watch({.snapshot = true});
    if (!queue.ok()) return false;  // Too many watchers: tried again with the next step.
    queue_ = *std::move(queue);
    ++round_;
  }
  const auto events = queue_->Next(kAtOnce, clock_.Now());
  if (!events.ok()) {
    queue_.reset();
    ++restarts_;
    return true;
  }
  for (const CacheEvent& event : *events) Handle(event);
  return events->size() == kAtOnce;
}

WaymarkFollower::Followed* WaymarkFollower::Find(const Digest& fingerprint) {
  Followed& followed = namespaces_[fingerprint];
  if (followed.block_tokens == 0) {
    const auto spec = engine_.GetNamespace(fingerprint);
    if (!spec.ok()) {
      namespaces_.erase(fingerprint);
      return nullptr;
    }
    followed.block_tokens = (*spec)->layout.block_tokens;
  }
  return &followed;
}

void WaymarkFollower::Tell(WaymarkHash hash, const Held& before, const Held& now) {
  if (now.tiers == 0) {
    if (before.tiers != 0) announcer_.Gone(hash);
  } else if (before.tiers == 0 || ClassOf(before.tiers) != ClassOf(now.tiers)) {
    announcer_.Stored({hash, ClassOf(now.tiers)});
  }
}

void WaymarkFollower::Handle(const CacheEvent& event) {
  using Kind = CacheEvent::Kind;
  if (event.kind == Kind::kSnapshotEnd) return EndSnapshot();
  if (event.kind == Kind::kNamespaceDropped) {
    const auto it = namespaces_.find(event.fingerprint);
    if (it == namespaces_.end()) return;
    for (const auto& [hash, held] : it->second.waymarks) announcer_.Gone(hash);
    namespaces_.erase(it);
    return;
  }
  Followed* const followed = Find(event.fingerprint);
  if (followed == nullptr) return;
  const WaymarkHash hash = HashForWaymark(event.fingerprint, event.key);
  if (!IsWaymark(hash, followed->block_tokens)) return;
  Held& held = followed->waymarks[hash];
  const Held before = held;
  held.round = round_;
  switch (event.kind) {
    case Kind::kStored:
    case Kind::kTierAdded:
      held.tiers |= Bit(event.tier);
      break;
    case Kind::kTierRemoved:
      held.tiers &= static_cast<uint8_t>(~Bit(event.tier));
      break;
    default:
      held.tiers = 0;
  }
  Tell(hash, before, held);
  if (held.tiers == 0) followed->waymarks.erase(hash);
}

uint64_t WaymarkFollower::bytes() const {
  uint64_t bytes = namespaces_.capacity() * (sizeof(Digest) + sizeof(Followed) + 1);
  for (const auto& [fingerprint, followed] : namespaces_) {
    bytes += followed.waymarks.capacity() * (sizeof(WaymarkHash) + sizeof(Held) + 1);
  }
  return bytes;
}

void WaymarkFollower::EndSnapshot() {
  for (auto& [fingerprint, followed] : namespaces_) {
    absl::erase_if(followed.waymarks, [&](const auto& entry) {
      if (entry.second.round == round_) return false;
      announcer_.Gone(entry.first);
      return true;
    });
  }
}

}  // namespace cairn::cache
