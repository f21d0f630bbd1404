#include "clients/cpp/src/release_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "clients/cpp/src/channel.h"

namespace cairn::client {
namespace {
constexpr auto kDeadline = std::chrono::seconds(2);
}

ReleaseQueue::~ReleaseQueue() {
  MutexLock lock(mu_);
  stopping_ = true;
  if (sending_) call_->context.TryCancel();
  idle_.Wait(mu_, [this] { return !sending_; });
}

void ReleaseQueue::Add(const std::string& session, std::vector<uint64_t>& to,
                       const std::vector<uint64_t>& ids) {
  if (session_ != session) {
    // What waits for another session the node has forgotten already.
    session_ = session;
    leases_.clear();
    reservations_.clear();
  }
  const size_t taken = std::min(kCapacity - std::min(kCapacity, to.size()), ids.size());
  to.insert(to.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(taken));
  dropped_.fetch_add(ids.size() - taken, std::memory_order_relaxed);
}

void ReleaseQueue::ReleaseLease(const std::string& session, uint64_t lease) {
  Call* call = nullptr;
  {
    MutexLock lock(mu_);
    Add(session, leases_, {lease});
    if (!sending_) call = NextCall();
  }
  Start(call);
}

void ReleaseQueue::AbortReservations(const std::string& session,
                                     const std::vector<uint64_t>& reservations) {
  Call* call = nullptr;
  {
    MutexLock lock(mu_);
    Add(session, reservations_, reservations);
    if (!sending_) call = NextCall();
  }
  Start(call);
}

ReleaseQueue::Call* ReleaseQueue::NextCall() {
  sending_ = !stopping_ && (!leases_.empty() || !reservations_.empty());
  if (!sending_) {
    idle_.NotifyAll();
    return nullptr;
  }
  call_ = std::make_unique<Call>();
  Prepare(call_->context, std::chrono::steady_clock::now() + kDeadline, {});
  // One kind a call; the other kind's turn comes when this one has returned.
  if (!leases_.empty()) {
    call_->release.set_session_id(session_);
    call_->release.mutable_lease_ids()->Add(leases_.begin(), leases_.end());
    leases_.clear();
  } else {
    call_->abort.set_session_id(session_);
    call_->abort.mutable_reservation_ids()->Add(reservations_.begin(), reservations_.end());
    reservations_.clear();
  }
  return call_.get();
}

void ReleaseQueue::Start(Call* call) {
  if (call == nullptr) return;
  // A failure needs no answer: what was not released ends by itself.
  const auto sent = [this](const grpc::Status&) { Sent(); };
  if (call->release.lease_ids_size() > 0) {
    stub_->async()->Release(&call->context, &call->release, &call->released, sent);
  } else {
    stub_->async()->Abort(&call->context, &call->abort, &call->aborted, sent);
  }
}

void ReleaseQueue::Sent() {
  Call* call = nullptr;
  {
    MutexLock lock(mu_);
    call = NextCall();
  }
  // With nothing more to send, the destructor may have run by now.
  Start(call);
}

}  // namespace cairn::client
