#include "services/cache/store/state/tenant_room.h"

#include <algorithm>

namespace cairn::cache {

std::shared_ptr<TenantRoom> TenantRooms::Get(const std::string& tenant) {
  MutexLock lock(mu_);
  if (const auto it = rooms_.find(tenant); it != rooms_.end()) {
    if (auto room = it->second.lock(); room != nullptr) return room;
  }
  if (rooms_.size() >= sweep_at_) {
    absl::erase_if(rooms_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = std::max<size_t>(64, 2 * rooms_.size());
  }
  auto room = std::make_shared<TenantRoom>(tenant);
  if (limits_of_) room->SetLimits(limits_of_(tenant));
  rooms_[tenant] = room;
  return room;
}

void TenantRooms::SetLimits(LimitsOf limits_of) {
  MutexLock lock(mu_);
  limits_of_ = std::move(limits_of);
  for (const auto& [tenant, entry] : rooms_) {
    const auto room = entry.lock();
    if (room != nullptr) room->SetLimits(limits_of_ ? limits_of_(tenant) : TenantLimits());
  }
}

std::vector<std::shared_ptr<TenantRoom>> TenantRooms::All() const {
  std::vector<std::shared_ptr<TenantRoom>> all;
  MutexLock lock(mu_);
  for (const auto& [tenant, entry] : rooms_) {
    if (auto room = entry.lock(); room != nullptr) all.push_back(std::move(room));
  }
  return all;
}

}  // namespace cairn::cache
