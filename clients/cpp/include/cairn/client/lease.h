#pragma once
// A lease: the promise of a node to keep a matched prefix readable.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "cairn/common/clock.h"
#include "cairn/common/hash.h"

namespace cairn::client {

// The facts that a client knows about one of its leases. Immutable.
struct LeaseInfo {
  uint64_t id = 0;
  std::string session = {};  // The session that owns it. When that breaks, the lease is gone.
  Digest fingerprint = {};
  uint32_t blocks = 0;
  TimePoint expires_at = {};  // By this machine's clock, counted from before the match was sent,
                              // so that it is never later than the node's own time.
  // In a client of several nodes: which of them gave the lease. Opaque.
  std::shared_ptr<const void> node = {};
};

// Takes leases back. Clients implement it. Thread-safe.
class LeaseOwner {
 public:
  virtual ~LeaseOwner() = default;
  // Must not block.
  virtual void ReleaseLease(const LeaseInfo& lease) = 0;
};

// Owns one lease. Move-only; the destructor gives the lease back without blocking. May outlive its
// client. Thread-compatible.
class Lease {
 public:
  Lease() = default;
  Lease(std::weak_ptr<LeaseOwner> owner, LeaseInfo info)
      : owner_(std::move(owner)), info_(std::make_unique<LeaseInfo>(std::move(info))) {}
  Lease(Lease&&) = default;
  Lease& operator=(Lease&& other) noexcept {
    if (this != &other) {
      Release();
      owner_ = std::move(other.owner_);
      info_ = std::move(other.info_);
    }
    return *this;
  }
  ~Lease() { Release(); }

  // False when there is nothing to release: nothing matched, or the lease was moved from or
  // released.
  bool held() const { return info_ != nullptr; }
  // REQUIRES: held().
  const LeaseInfo& info() const { return *info_; }

  // For clients of several nodes. REQUIRES: held().
  void SetNode(std::shared_ptr<const void> node) { info_->node = std::move(node); }

  void Release() {
    if (info_ == nullptr) return;
    if (const auto owner = owner_.lock()) owner->ReleaseLease(*info_);
    info_.reset();
  }

 private:
  std::weak_ptr<LeaseOwner> owner_;
  std::unique_ptr<LeaseInfo> info_;
};

}  // namespace cairn::client
