#include "services/cache/store/engine/bump_records.h"

#include <algorithm>
#include <string>

#include "common/log/log.h"
#include "services/cache/store/state/bump_record.h"

namespace cairn::cache {

Status BumpRecords::Load(BumpLog* log) {
  if (disk_ == nullptr) return OkStatus();
  CAIRN_RETURN_IF_ERROR(disk_->ListMeta([&](std::string_view name, std::string_view value) {
    const auto sequence = BumpSequenceOf(name);
    if (!sequence) return;
    next_ = std::max(next_, *sequence + 1);
    const auto bumps = DecodeBumps(value);
    if (!bumps.ok()) {
      log::Warn("bump_record_unreadable",
                {{"name", std::string(name)}, {"error", Message(bumps.status())}});
      return;
    }
    log->Add(*bumps);
    records_.push_back({*sequence, bumps->size()});
    bumps_ += bumps->size();
  }));
  DeleteOld();
  return OkStatus();
}

Status BumpRecords::Append(std::span<const Bump> bumps) {
  if (disk_ == nullptr) return OkStatus();
  // Also after a failure: what was not written in time may still come to be.
  const uint64_t sequence = next_++;
  CAIRN_RETURN_IF_ERROR(disk_->PutMeta(BumpMetaName(sequence), EncodeBumps(bumps)));
  records_.push_back({sequence, bumps.size()});
  bumps_ += bumps.size();
  DeleteOld();
  return OkStatus();
}

void BumpRecords::DeleteOld() {
  while (!records_.empty() && bumps_ - records_.front().bumps >= BumpLog::kKept) {
    // One that stays is read, and forgotten, at the next start.
    const Status status = disk_->DeleteMeta(BumpMetaName(records_.front().sequence));
    if (!status.ok()) log::Warn("bump_record_not_deleted", {{"error", Message(status)}});
    bumps_ -= records_.front().bumps;
    records_.pop_front();
  }
}

}  // namespace cairn::cache
