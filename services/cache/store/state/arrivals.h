#pragma once
// The readers that wait for a block that somebody writes.
//
//   Add(block, waiter) ─► [the block is stored, or a writer leaves it] Tell(block) ─► Wake, once
//
// Nobody waits on a thread: Wake runs on the executor. A waiter that wants to wait on adds itself
// again, for the next block. Thread-safe. Its lock is a leaf.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "cairn/common/namespace_spec.h"
#include "common/concurrency/executor.h"
#include "common/concurrency/mutex.h"
#include "services/cache/store/state/ids.h"

namespace cairn::cache {

class NamespaceState;

class Arrivals {
 public:
  class Waiter {
   public:
    virtual ~Waiter() = default;
    // Looks again for itself. Short.
    virtual void Wake() = 0;
  };
  using WaiterPtr = std::shared_ptr<Waiter>;

  // Limits for those that wait at a time: in all, of one tenant, and of one session.
  static constexpr uint32_t kMost = 1024;
  static constexpr uint32_t kMostOfTenant = 512;
  static constexpr uint32_t kMostOfSession = 64;

  // A place among those that may wait, given back when it is destroyed.
  class [[nodiscard]] Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)),
          session_(other.session_),
          tenant_(std::move(other.tenant_)) {}
    Place& operator=(Place&&) = delete;
    ~Place() {
      if (owner_ != nullptr) owner_->Leave(session_, tenant_);
    }
    explicit operator bool() const { return owner_ != nullptr; }

   private:
    friend class Arrivals;
    Place(Arrivals* owner, SessionId session, std::string tenant)
        : owner_(owner), session_(session), tenant_(std::move(tenant)) {}
    Arrivals* owner_ = nullptr;
    SessionId session_ = 0;
    std::string tenant_;
  };

  // `executor` outlives it.
  explicit Arrivals(Executor* executor) : executor_(executor) {}

  // False: too many wait, or Close was called.
  Place Enter(SessionId session, const std::string& tenant);
  // Until Tell or Remove. Call it under the lock of the namespace, under which the block was seen
  // to have a writer: so no Tell is missed. False after Close.
  bool Add(const NamespaceState* ns, const BlockKey& key, const WaiterPtr& waiter);
  // It waits no longer.
  void Remove(const NamespaceState* ns, const BlockKey& key, const Waiter* waiter);
  // Call it after the block was stored or a writer left it, without the lock of the namespace.
  void Tell(const NamespaceState* ns, const BlockKey& key);
  // Runs what the executor could not take.
  void Tick();
  // Wakes all. Nobody waits from now on.
  void Close();

  uint32_t waiting() const {
    MutexLock lock(mu_);
    return places_;
  }

 private:
  using Id = std::pair<const NamespaceState*, BlockKey>;
  using Waiters = absl::InlinedVector<WaiterPtr, 1>;

  void Leave(SessionId session, const std::string& tenant);
  void Post();
  void RunReady();

  Executor* const executor_;
  mutable Mutex mu_;
  absl::flat_hash_map<Id, Waiters> waiters_ ABSL_GUARDED_BY(mu_);
  std::deque<WaiterPtr> ready_ ABSL_GUARDED_BY(mu_);
  uint32_t places_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<SessionId, uint32_t> of_session_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, uint32_t> of_tenant_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::cache
