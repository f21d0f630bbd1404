#include "services/cache/store/tier/disk/damage_reports.h"

#include <utility>

#include "common/log/log.h"

namespace cairn::cache::disk {

void DamageReports::SetListener(PersistentTier::DamageListener listener) {
  MutexLock lock(mu_);
  listener_ = std::move(listener);
}

void DamageReports::Report(const Resident& resident, const Status& status) {
  ++count_;
  log::Warn("disk_tier_damage", {{"extent", log::Num(resident.id)}, {"error", Message(status)}});
  const auto record = store_.RecordOf(resident.id);
  if (!record.ok()) return;
  MutexLock lock(mu_);
  if (listener_) listener_(Extent{resident.id, resident.length}, *record);
}

}  // namespace cairn::cache::disk
