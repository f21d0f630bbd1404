#include "services/cache/store/state/arrivals.h"

#include <algorithm>

namespace cairn::cache {

Arrivals::Place Arrivals::Enter(SessionId session, const std::string& tenant) {
  MutexLock lock(mu_);
  if (closed_ || places_ >= kMost) return {};
  uint32_t& of_session = of_session_[session];
  uint32_t& of_tenant = of_tenant_[tenant];
  if (of_session >= kMostOfSession || of_tenant >= kMostOfTenant) {
    if (of_session == 0) of_session_.erase(session);
    if (of_tenant == 0) of_tenant_.erase(tenant);
    return {};
  }
  ++of_session;
  ++of_tenant;
  ++places_;
  return Place(this, session, tenant);
}

void Arrivals::Leave(SessionId session, const std::string& tenant) {
  MutexLock lock(mu_);
  --places_;
  if (const auto it = of_session_.find(session); --it->second == 0) of_session_.erase(it);
  if (const auto it = of_tenant_.find(tenant); --it->second == 0) of_tenant_.erase(it);
}

bool Arrivals::Add(const NamespaceState* ns, const BlockKey& key, const WaiterPtr& waiter) {
  MutexLock lock(mu_);
  if (closed_) return false;
  waiters_[Id{ns, key}].push_back(waiter);
  return true;
}

void Arrivals::Remove(const NamespaceState* ns, const BlockKey& key, const Waiter* waiter) {
  MutexLock lock(mu_);
  const auto it = waiters_.find(Id{ns, key});
  if (it == waiters_.end()) return;
  const auto here = std::find_if(it->second.begin(), it->second.end(),
                                 [&](const WaiterPtr& one) { return one.get() == waiter; });
  if (here != it->second.end()) it->second.erase(here);
  if (it->second.empty()) waiters_.erase(it);
}

void Arrivals::Tell(const NamespaceState* ns, const BlockKey& key) {
  {
    MutexLock lock(mu_);
    const auto it = waiters_.find(Id{ns, key});
    if (it == waiters_.end()) return;
    for (WaiterPtr& waiter : it->second) ready_.push_back(std::move(waiter));
    waiters_.erase(it);
  }
  Post();
}

void Arrivals::Post() {
  // A full executor: Tick does it later.
  (void)executor_->Post([this] { RunReady(); });
}

void Arrivals::RunReady() {
  std::deque<WaiterPtr> ready;
  {
    MutexLock lock(mu_);
    ready.swap(ready_);
  }
  for (const WaiterPtr& waiter : ready) waiter->Wake();
}

void Arrivals::Tick() {
  {
    MutexLock lock(mu_);
    if (ready_.empty()) return;
  }
  RunReady();
}

void Arrivals::Close() {
  {
    MutexLock lock(mu_);
    closed_ = true;
    for (auto& [id, waiters] : waiters_) {
      for (WaiterPtr& waiter : waiters) ready_.push_back(std::move(waiter));
    }
    waiters_.clear();
  }
  RunReady();
}

}  // namespace cairn::cache
