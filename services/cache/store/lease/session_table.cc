#include "services/cache/store/lease/session_table.h"

#include <algorithm>

namespace cairn::cache {

bool Lease::Find(uint32_t begin, uint32_t end, std::vector<BlockRef>* found) const {
  uint32_t first = 0;
  for (const Path& path : paths) {
    const uint32_t from = std::max(begin, first);
    const uint32_t to = std::min(end, first + path.count);
    if (from < to && !ns->index.PathTo(path.pin, path.count, from - first, to - first, found)) {
      return false;
    }
    first += path.count;
  }
  return end <= first;
}

Status Reservation::BeginWrite(uint64_t offset, uint64_t bytes) {
  MutexLock lock(mu_);
  if (sealed_) {
    return Errorf(StatusCode::kFailedPrecondition, "part of block {}: it is being committed",
                  key.Hex());
  }
  if (!written_.Add(static_cast<uint32_t>(offset), static_cast<uint32_t>(offset + bytes))) {
    return Errorf(StatusCode::kResourceExhausted,
                  "field 'offset': got {}, away from the {} ranges of the part that were written; "
                  "expected bytes that follow or precede one of them",
                  offset, WrittenRanges::kMaxRanges);
  }
  ++writers_;
  return OkStatus();
}

void Reservation::EndWrite() {
  MutexLock lock(mu_);
  --writers_;
}

bool Reservation::Seal() {
  MutexLock lock(mu_);
  if (sealed_ || writers_ > 0) return false;
  sealed_ = true;
  return true;
}

Status Reservation::CheckWhole() const {
  MutexLock lock(mu_);
  const uint32_t missing = written_.FirstMissing();
  if (missing == extent_.length) return OkStatus();
  return Errorf(StatusCode::kFailedPrecondition,
                "part of block {}, layers [{}, {}) and heads [{}, {}): byte {} was not written, "
                "expected all {} bytes",
                key.Hex(), rect.layer_begin, rect.layer_end, rect.head_begin, rect.head_end,
                missing, extent_.length);
}

Status SessionTable::NoSession(SessionId session) const {
  return Errorf(StatusCode::kNotFound, "field 'session_id': no open session {}", session);
}

Result<SessionId> SessionTable::Open(std::string_view name, std::string_view tenant,
                                     std::shared_ptr<NodeTenant> counted) {
  MutexLock lock(mu_);
  if (sessions_.size() >= max_sessions_) {
    return Errorf(StatusCode::kResourceExhausted, "sessions: {} are open, the limit is {}",
                  sessions_.size(), max_sessions_);
  }
  if (counted != nullptr) {
    const uint64_t open = counted->sessions.load(std::memory_order_relaxed);
    if (open >= counted->most_sessions()) {
      return Errorf(StatusCode::kResourceExhausted,
                    "sessions: {} of tenant '{}' are open, its limit is {} (the policy's limits)",
                    open, tenant, counted->most_sessions());
    }
    counted->sessions.fetch_add(1, std::memory_order_relaxed);
  }
  const SessionId id = next_id_++;
  Session& session = sessions_[id];
  session.counted = std::move(counted);
  session.name = std::string(name);
  session.tenant = std::string(tenant);
  return id;
}

SessionTable::Ended SessionTable::Close(SessionId session) {
  Ended ended;
  MutexLock lock(mu_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return ended;
  for (auto& [id, owned] : it->second.leases) {
    due_leases_.erase({owned.deadline, session, id});
    ended.leases.push_back(std::move(owned.object));
  }
  for (auto& [id, owned] : it->second.reservations) {
    due_reservations_.erase({owned.deadline, session, id});
    ended.reservations.push_back(std::move(owned.object));
  }
  if (const auto& counted = it->second.counted; counted != nullptr) {
    counted->sessions.fetch_sub(1, std::memory_order_relaxed);
  }
  sessions_.erase(it);
  return ended;
}

void SessionTable::Spend(SessionId session, uint64_t bytes, TimePoint now) const {
  MutexLock lock(mu_);
  const auto it = sessions_.find(session);
  if (it != sessions_.end() && it->second.counted != nullptr) {
    it->second.counted->pace.Spend(bytes, now);
  }
}

Status SessionTable::Check(SessionId session) const {
  MutexLock lock(mu_);
  return sessions_.contains(session) ? OkStatus() : NoSession(session);
}

Result<std::string> SessionTable::TenantOf(SessionId session) const {
  MutexLock lock(mu_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return NoSession(session);
  // The same whether there is such a namespace or not.
  if (it->second.tenant == kNoTenant) {
    return Errorf(StatusCode::kPermissionDenied,
                  "field 'session_id': the session named no tenant, expected one that the policy "
                  "lets its caller use");
  }
  return it->second.tenant;
}

Status SessionTable::CheckLeaseRoom(SessionId session) const {
  MutexLock lock(mu_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return NoSession(session);
  if (it->second.leases.size() >= max_leases_) {
    return Errorf(StatusCode::kResourceExhausted, "leases: session {} holds {}, the limit is {}",
                  session, it->second.leases.size(), max_leases_);
  }
  return OkStatus();
}

Result<LeaseId> SessionTable::AddLease(SessionId session, LeasePtr lease, TimePoint deadline) {
  CAIRN_RETURN_IF_ERROR(CheckLeaseRoom(session));
  MutexLock lock(mu_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return NoSession(session);
  const LeaseId id = next_id_++;
  it->second.leases.emplace(id, Owned<LeasePtr>{std::move(lease), deadline});
  due_leases_.insert({deadline, session, id});
  return id;
}

Result<LeasePtr> SessionTable::FindLease(SessionId session, LeaseId id, TimePoint now) const {
  MutexLock lock(mu_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return NoSession(session);
  const auto lease = it->second.leases.find(id);
  if (lease == it->second.leases.end() || lease->second.deadline <= now) {
    return Errorf(StatusCode::kNotFound,
                  "field 'lease_id': no lease {} in this session; it may have ended", id);
  }
  return lease->second.object;
}

LeasePtr SessionTable::TakeLease(SessionId session, LeaseId id) {
  MutexLock lock(mu_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return nullptr;
  const auto lease = it->second.leases.find(id);
  if (lease == it->second.leases.end()) return nullptr;
  due_leases_.erase({lease->second.deadline, session, id});
  LeasePtr taken = std::move(lease->second.object);
  it->second.leases.erase(lease);
  return taken;
}

Status SessionTable::RenewLease(SessionId session, LeaseId id, TimePoint now, TimePoint deadline) {
  CAIRN_RETURN_IF_ERROR(FindLease(session, id, now).status());
  MutexLock lock(mu_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return NoSession(session);
  const auto lease = it->second.leases.find(id);
  if (lease == it->second.leases.end()) {
    return Errorf(StatusCode::kNotFound,
                  "field 'lease_id': no lease {} in this session; it may have ended", id);
  }
  due_leases_.erase({lease->second.deadline, session, id});
  lease->second.deadline = deadline;
  due_leases_.insert({deadline, session, id});
  return OkStatus();
}

Result<ReservationId> SessionTable::AddReservation(SessionId session, ReservationPtr reservation,
                                                   TimePoint deadline) {
  MutexLock lock(mu_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return NoSession(session);
  const ReservationId id = next_id_++;
  it->second.reservations.emplace(id, Owned<ReservationPtr>{std::move(reservation), deadline});
  due_reservations_.insert({deadline, session, id});
  return id;
}

Result<ReservationPtr> SessionTable::FindReservation(SessionId session, ReservationId id,
                                                     TimePoint now) const {
  MutexLock lock(mu_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return NoSession(session);
  const auto found = it->second.reservations.find(id);
  if (found == it->second.reservations.end() || found->second.deadline <= now) {
    return Errorf(StatusCode::kNotFound,
                  "field 'reservation_id': no reservation {} in this session; it may have expired",
                  id);
  }
  return found->second.object;
}

ReservationPtr SessionTable::TakeReservation(SessionId session, ReservationId id, TimePoint now) {
  MutexLock lock(mu_);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return nullptr;
  const auto found = it->second.reservations.find(id);
  // One that is due belongs to Expire, which counts it.
  if (found == it->second.reservations.end() || found->second.deadline <= now) return nullptr;
  due_reservations_.erase({found->second.deadline, session, id});
  ReservationPtr taken = std::move(found->second.object);
  it->second.reservations.erase(found);
  return taken;
}

SessionTable::Ended SessionTable::Expire(TimePoint now) {
  Ended ended;
  MutexLock lock(mu_);
  while (!due_leases_.empty() && due_leases_.begin()->deadline <= now) {
    const Due due = *due_leases_.begin();
    due_leases_.erase(due_leases_.begin());
    auto& leases = sessions_.at(due.session).leases;
    ended.leases.push_back(std::move(leases.at(due.id).object));
    leases.erase(due.id);
  }
  while (!due_reservations_.empty() && due_reservations_.begin()->deadline <= now) {
    const Due due = *due_reservations_.begin();
    due_reservations_.erase(due_reservations_.begin());
    auto& reservations = sessions_.at(due.session).reservations;
    ended.reservations.push_back(std::move(reservations.at(due.id).object));
    reservations.erase(due.id);
  }
  return ended;
}

SessionTable::Ended SessionTable::TakeAllOf(const NamespaceState& ns) {
  Ended ended;
  MutexLock lock(mu_);
  for (auto& [session, owner] : sessions_) {
    for (auto it = owner.leases.begin(); it != owner.leases.end();) {
      const auto here = it++;
      if (here->second.object->ns.get() != &ns || here->second.deadline == TimePoint::max()) {
        continue;
      }
      due_leases_.erase({here->second.deadline, session, here->first});
      ended.leases.push_back(std::move(here->second.object));
      owner.leases.erase(here);
    }
    for (auto it = owner.reservations.begin(); it != owner.reservations.end();) {
      const auto here = it++;
      if (here->second.object->ns.get() != &ns || here->second.deadline == TimePoint::max()) {
        continue;
      }
      due_reservations_.erase({here->second.deadline, session, here->first});
      ended.reservations.push_back(std::move(here->second.object));
      owner.reservations.erase(here);
    }
  }
  return ended;
}

size_t SessionTable::sessions() const {
  MutexLock lock(mu_);
  return sessions_.size();
}
size_t SessionTable::leases() const {
  MutexLock lock(mu_);
  return due_leases_.size();
}
size_t SessionTable::reservations() const {
  MutexLock lock(mu_);
  return due_reservations_.size();
}

}  // namespace cairn::cache
