#include "clients/cpp/src/release_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "clients/cpp/src/channel.h"

namespace cairn::client {
namespace {
constexpr auto kDeadline = std::chrono::seconds(2);
}

// What a call needs until its answer is there. The queue rides along, so that it lives until then.
struct ReleaseQueue::ReleaseCall {
  std::shared_ptr<ReleaseQueue> queue;
  grpc::ClientContext context;
  v1::ReleaseRequest request;
  v1::ReleaseResponse response;
};
struct ReleaseQueue::AbortCall {
  std::shared_ptr<ReleaseQueue> queue;
  grpc::ClientContext context;
  v1::AbortRequest request;
  v1::AbortResponse response;
};

void ReleaseQueue::EnterSession(const std::string& session) {
  if (session_ == session) return;
  session_ = session;
  waiting_ = {};
}

void ReleaseQueue::ReleaseLease(const std::string& session, uint64_t lease) {
  {
    MutexLock lock(mu_);
    EnterSession(session);
    if (waiting_.leases.size() >= kCapacity) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    waiting_.leases.push_back(lease);
  }
  SendNext();
}

void ReleaseQueue::AbortReservations(const std::string& session, const std::vector<uint64_t>& reservations) {
  if (reservations.empty()) return;
  {
    MutexLock lock(mu_);
    EnterSession(session);
    const size_t room = kCapacity - std::min(kCapacity, waiting_.reservations.size());
    const size_t taken = std::min(room, reservations.size());
    waiting_.reservations.insert(waiting_.reservations.end(), reservations.begin(), reservations.begin() + static_cast<std::ptrdiff_t>(taken));
  }
  SendNext();
}

void ReleaseQueue::SendNext() {
  Waiting batch;
  std::string session;
  {
    MutexLock lock(mu_);
    if (sending_) return;
    // One kind a call; the other kind's turn comes when this one has returned.
    if (!waiting_.leases.empty()) {
      std::swap(batch.leases, waiting_.leases);
    } else if (!waiting_.reservations.empty()) {
      std::swap(batch.reservations, waiting_.reservations);
    } else {
      return;
    }
    sending_ = true;
    session = session_;
  }
  const auto prepare = [&](auto& call) {
    call.queue = shared_from_this();
    Prepare(call.context, std::chrono::steady_clock::now() + kDeadline, {});
    call.request.set_session_id(session);
  };
  // A failure needs no answer: what was not released ends by itself.
  if (!batch.leases.empty()) {
    auto call = std::make_shared<ReleaseCall>();
    prepare(*call);
    call->request.mutable_lease_ids()->Add(batch.leases.begin(), batch.leases.end());
    stub_->async()->Release(&call->context, &call->request, &call->response,
                            [call](const grpc::Status&) { call->queue->Sent(); });
  } else {
    auto call = std::make_shared<AbortCall>();
    prepare(*call);
    call->request.mutable_reservation_ids()->Add(batch.reservations.begin(), batch.reservations.end());
    stub_->async()->Abort(&call->context, &call->request, &call->response,
                          [call](const grpc::Status&) { call->queue->Sent(); });
  }
}

void ReleaseQueue::Sent() {
  {
    MutexLock lock(mu_);
    sending_ = false;
  }
  SendNext();
}

}  // namespace cairn::client
