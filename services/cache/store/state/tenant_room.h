#pragma once
// The room that the blocks of each tenant take in each tier, the most that they may take, and what
// the blocks of others do not take away from them.
//
// Room is counted in whole pages, as tiers give it. A namespace tells what its blocks take whenever
// its lock ends (NamespaceLock); a writer holds room for a part until it is committed.
//
// The bound is not exact to the byte: copies that are being made count when they are done.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cairn/common/tier_kind.h"
#include "common/concurrency/mutex.h"

namespace cairn::cache {

// Bytes of one tenant, by tier.
struct TenantLimits {
  ByTier<uint64_t> most = {{UINT64_MAX, UINT64_MAX, UINT64_MAX}};
  // The blocks of others take no room of a tenant that has at most so much.
  ByTier<uint64_t> guaranteed = {};
};

// Thread-safe.
class TenantRoom {
 public:
  explicit TenantRoom(std::string tenant) : tenant_(std::move(tenant)) { SetLimits({}); }

  const std::string& tenant() const { return tenant_; }
  void SetLimits(const TenantLimits& limits) {
    for (size_t t = 0; t < kTierCount; ++t) {
      most_[t].store(limits.most[t], std::memory_order_relaxed);
      guaranteed_[t].store(limits.guaranteed[t], std::memory_order_relaxed);
    }
  }
  uint64_t most(TierKind tier) const { return most_[tier].load(std::memory_order_relaxed); }
  uint64_t guaranteed(TierKind tier) const {
    return guaranteed_[tier].load(std::memory_order_relaxed);
  }
  uint64_t bytes(TierKind tier) const { return bytes_[tier].load(std::memory_order_relaxed); }
  // Adds the bytes unless that is over the limit.
  bool Take(TierKind tier, uint64_t more) {
    const uint64_t limit = most(tier);
    uint64_t now = bytes(tier);
    do {
      if (limit != UINT64_MAX && (more > limit || now > limit - more)) return false;
    } while (!bytes_[tier].compare_exchange_weak(now, now + more, std::memory_order_relaxed));
    return true;
  }
  // Whether the blocks of others may take no room of it.
  bool IsGuaranteed(TierKind tier) const {
    const uint64_t sure = guaranteed(tier);
    return sure > 0 && bytes(tier) <= sure;
  }
  // Its blocks take `more` bytes where they took `less`.
  void Change(TierKind tier, uint64_t more, uint64_t less) {
    bytes_[tier].fetch_add(more - less, std::memory_order_relaxed);  // Wraps back.
  }

 private:
  const std::string tenant_;
  ByTier<std::atomic<uint64_t>> bytes_ = {}, most_ = {}, guaranteed_ = {};
};

// Room that somebody takes for a tenant before there is a block, given back when it is destroyed.
// Move-only.
class [[nodiscard]] HeldRoom {
 public:
  HeldRoom() = default;
  // nullopt: it is over the tenant's limit. nullptr: nobody counts.
  static std::optional<HeldRoom> Take(std::shared_ptr<TenantRoom> room, TierKind tier,
                                      uint64_t bytes) {
    if (room == nullptr) return HeldRoom();
    if (!room->Take(tier, bytes)) return std::nullopt;
    return HeldRoom(std::move(room), tier, bytes);
  }
  HeldRoom(HeldRoom&& other) noexcept
      : room_(std::move(other.room_)), tier_(other.tier_), bytes_(other.bytes_) {}
  HeldRoom& operator=(HeldRoom&& other) noexcept {
    std::swap(room_, other.room_);
    std::swap(tier_, other.tier_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HeldRoom() {
    if (room_ != nullptr) room_->Change(tier_, 0, bytes_);
  }

 private:
  HeldRoom(std::shared_ptr<TenantRoom> room, TierKind tier, uint64_t bytes)
      : room_(std::move(room)), tier_(tier), bytes_(bytes) {}
  std::shared_ptr<TenantRoom> room_;
  TierKind tier_ = TierKind::kHost;
  uint64_t bytes_ = 0;
};

// The tenants that have namespaces. Thread-safe. Its lock is a leaf but for `limits_of`.
class TenantRooms {
 public:
  using LimitsOf = std::function<TenantLimits(std::string_view tenant)>;

  // One for each tenant, as long as somebody has it.
  std::shared_ptr<TenantRoom> Get(const std::string& tenant);
  // From now on tenants have these limits, also those that come later. Call it again when the
  // limits have changed. `limits_of` may be called with the lock held. nullptr: nobody has any.
  void SetLimits(LimitsOf limits_of);
  // Those that somebody has, in no order.
  std::vector<std::shared_ptr<TenantRoom>> All() const;
  // How many names the table has.
  size_t known() const {
    MutexLock lock(mu_);
    return rooms_.size();
  }

 private:
  mutable Mutex mu_;
  LimitsOf limits_of_ ABSL_GUARDED_BY(mu_);
  // Those that nobody has any more go when the table has doubled.
  absl::flat_hash_map<std::string, std::weak_ptr<TenantRoom>> rooms_ ABSL_GUARDED_BY(mu_);
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = 64;
};

}  // namespace cairn::cache
