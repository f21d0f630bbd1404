#include "clients/cpp/src/core/release_queue.h"

#include <algorithm>
#include <utility>

namespace cairn::client {

void ReleaseQueue::Add(const std::string& session, std::vector<uint64_t>& to,
                       std::span<const uint64_t> ids) {
  if (session_ != session) {
    // If ids wait for another session, the node has forgotten them already.
    session_ = session;
    leases_.clear();
    reservations_.clear();
  }
  const auto taken = ids.first(std::min(kCapacity - std::min(kCapacity, to.size()), ids.size()));
  to.insert(to.end(), taken.begin(), taken.end());
  dropped_ += ids.size() - taken.size();
}

std::optional<ReleaseBatch> ReleaseQueue::NextBatch() {
  if (under_way_) return std::nullopt;
  // One kind a call. The other kind's turn comes when this call was answered.
  if (!leases_.empty()) {
    under_way_ = true;
    return ReleaseBatch{ReleaseBatch::Kind::kLeases, session_, std::exchange(leases_, {})};
  }
  if (reservations_.empty()) return std::nullopt;
  under_way_ = true;
  return ReleaseBatch{ReleaseBatch::Kind::kReservations, session_,
                      std::exchange(reservations_, {})};
}

void ReleaseQueue::ReleaseLease(const std::string& session, uint64_t lease) {
  std::optional<ReleaseBatch> batch;
  {
    MutexLock lock(mu_);
    Add(session, leases_, {&lease, 1});
    batch = NextBatch();
  }
  if (batch) sender_->Send(*std::move(batch));
}

void ReleaseQueue::AbortReservations(const std::string& session,
                                     std::span<const uint64_t> reservations) {
  std::optional<ReleaseBatch> batch;
  {
    MutexLock lock(mu_);
    Add(session, reservations_, reservations);
    batch = NextBatch();
  }
  if (batch) sender_->Send(*std::move(batch));
}

void ReleaseQueue::Look() {
  {
    MutexLock lock(mu_);
    if (!under_way_) return;
  }
  if (!sender_->Answered()) return;
  std::optional<ReleaseBatch> batch;
  {
    MutexLock lock(mu_);
    under_way_ = false;
    batch = NextBatch();
  }
  if (batch) sender_->Send(*std::move(batch));
}

uint64_t ReleaseQueue::dropped() const {
  MutexLock lock(mu_);
  return dropped_;
}

}  // namespace cairn::client
