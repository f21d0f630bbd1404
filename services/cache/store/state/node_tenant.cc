#include "services/cache/store/state/node_tenant.h"

#include <algorithm>

namespace cairn::cache {

std::shared_ptr<NodeTenant> NodeTenants::Get(const std::string& tenant) {
  MutexLock lock(mu_);
  if (const auto it = tenants_.find(tenant); it != tenants_.end()) {
    if (auto known = it->second.lock(); known != nullptr) return known;
  }
  if (tenants_.size() >= sweep_at_) {
    absl::erase_if(tenants_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = std::max<size_t>(64, 2 * tenants_.size());
  }
  auto made = std::make_shared<NodeTenant>(tenant);
  if (limits_of_) made->SetLimits(limits_of_(tenant));
  tenants_[tenant] = made;
  return made;
}

void NodeTenants::SetLimits(LimitsOf limits_of) {
  MutexLock lock(mu_);
  limits_of_ = std::move(limits_of);
  for (const auto& [name, entry] : tenants_) {
    const auto tenant = entry.lock();
    if (tenant != nullptr) tenant->SetLimits(limits_of_ ? limits_of_(name) : TenantLimits());
  }
}

std::vector<std::shared_ptr<NodeTenant>> NodeTenants::All() const {
  std::vector<std::shared_ptr<NodeTenant>> all;
  MutexLock lock(mu_);
  for (const auto& [name, entry] : tenants_) {
    if (auto tenant = entry.lock(); tenant != nullptr) all.push_back(std::move(tenant));
  }
  return all;
}

}  // namespace cairn::cache
