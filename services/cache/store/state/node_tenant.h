#pragma once
// The tenants of a node: the room that their blocks take in each tier, how fast they read and
// write, their sessions, and the limits of all of these.
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
#include "services/cache/store/state/tenant_pace.h"

namespace cairn::cache {

// The limits of one tenant.
struct TenantLimits {
  // Bytes, by tier.
  ByTier<uint64_t> most = {{UINT64_MAX, UINT64_MAX, UINT64_MAX}};
  // The blocks of others take no room of a tenant that has at most so much.
  ByTier<uint64_t> guaranteed = {};
  uint64_t bytes_per_second = TenantPace::kNoLimit;
  uint64_t sessions = UINT64_MAX;  // Open at a time.
};

// Thread-safe.
class NodeTenant {
 public:
  explicit NodeTenant(std::string name) : name_(std::move(name)) { SetLimits({}); }

  const std::string& name() const { return name_; }
  void SetLimits(const TenantLimits& limits) {
    for (size_t t = 0; t < kTierCount; ++t) {
      most_[t].store(limits.most[t], std::memory_order_relaxed);
      guaranteed_[t].store(limits.guaranteed[t], std::memory_order_relaxed);
    }
    pace.SetRate(limits.bytes_per_second);
    most_sessions_.store(limits.sessions, std::memory_order_relaxed);
  }
  // The bytes that its sessions read and write.
  TenantPace pace;
  uint64_t most_sessions() const { return most_sessions_.load(std::memory_order_relaxed); }
  // Those that are open. SessionTable tells it, under its lock.
  std::atomic<uint64_t> sessions{0};

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
  const std::string name_;
  std::atomic<uint64_t> most_sessions_{UINT64_MAX};
  ByTier<std::atomic<uint64_t>> bytes_ = {}, most_ = {}, guaranteed_ = {};
};

// Room that somebody takes for a tenant before there is a block, given back when it is destroyed.
// Move-only.
class [[nodiscard]] HeldRoom {
 public:
  HeldRoom() = default;
  // nullopt: it is over the tenant's limit. nullptr: nobody counts.
  static std::optional<HeldRoom> Take(std::shared_ptr<NodeTenant> tenant, TierKind tier,
                                      uint64_t bytes) {
    if (tenant == nullptr) return HeldRoom();
    if (!tenant->Take(tier, bytes)) return std::nullopt;
    return HeldRoom(std::move(tenant), tier, bytes);
  }
  HeldRoom(HeldRoom&& other) noexcept
      : tenant_(std::move(other.tenant_)), tier_(other.tier_), bytes_(other.bytes_) {}
  HeldRoom& operator=(HeldRoom&& other) noexcept {
    std::swap(tenant_, other.tenant_);
    std::swap(tier_, other.tier_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HeldRoom() {
    if (tenant_ != nullptr) tenant_->Change(tier_, 0, bytes_);
  }

 private:
  HeldRoom(std::shared_ptr<NodeTenant> tenant, TierKind tier, uint64_t bytes)
      : tenant_(std::move(tenant)), tier_(tier), bytes_(bytes) {}
  std::shared_ptr<NodeTenant> tenant_;
  TierKind tier_ = TierKind::kHost;
  uint64_t bytes_ = 0;
};

// The tenants that have namespaces or sessions. Thread-safe. Its lock is a leaf, but for the calls
// of `limits_of`.
class NodeTenants {
 public:
  using LimitsOf = std::function<TenantLimits(std::string_view tenant)>;

  // One for each tenant, as long as somebody has it.
  std::shared_ptr<NodeTenant> Get(const std::string& tenant);
  // From now on tenants have these limits, also those that come later. Call it again when the
  // limits have changed. `limits_of` may be called with the lock held. nullptr: nobody has any.
  void SetLimits(LimitsOf limits_of);
  // Those that somebody has, in no order.
  std::vector<std::shared_ptr<NodeTenant>> All() const;
  // How many names the table has.
  size_t known() const {
    MutexLock lock(mu_);
    return tenants_.size();
  }

 private:
  mutable Mutex mu_;
  LimitsOf limits_of_ ABSL_GUARDED_BY(mu_);
  // Those that nobody has any more go when the table has doubled.
  absl::flat_hash_map<std::string, std::weak_ptr<NodeTenant>> tenants_ ABSL_GUARDED_BY(mu_);
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = 64;
};

}  // namespace cairn::cache
