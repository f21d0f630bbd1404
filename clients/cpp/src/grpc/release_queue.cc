#include "clients/cpp/src/grpc/release_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "clients/cpp/src/grpc/channel.h"

namespace cairn::client {
namespace {
constexpr auto kDeadline = std::chrono::seconds(2);
}

ReleaseQueue::~ReleaseQueue() {
  MutexLock lock(mu_);
  if (call_ != nullptr) call_->context.TryCancel();
  answers_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (answers_.Next(&tag, &ok)) {
  }
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
    call = NextCall();
  }
  Start(call);
}

void ReleaseQueue::AbortReservations(const std::string& session,
                                     const std::vector<uint64_t>& reservations) {
  Call* call = nullptr;
  {
    MutexLock lock(mu_);
    Add(session, reservations_, reservations);
    call = NextCall();
  }
  Start(call);
}

void ReleaseQueue::Look() {
  {
    MutexLock lock(mu_);
    if (call_ == nullptr) return;
  }
  void* tag = nullptr;
  bool ok = false;
  // Not under the lock: gRPC reads what has come for any call meanwhile.
  const auto answer = answers_.AsyncNext(&tag, &ok, WallDeadline(TimePoint::min()));
  if (answer != grpc::CompletionQueue::GOT_EVENT) return;
  Call* call = nullptr;
  {
    MutexLock lock(mu_);
    // A failure needs no answer: what was not released ends by itself.
    call_.reset();
    call = NextCall();
  }
  Start(call);
}

ReleaseQueue::Call* ReleaseQueue::NextCall() {
  if (call_ != nullptr || (leases_.empty() && reservations_.empty())) return nullptr;
  call_ = std::make_unique<Call>();
  Prepare(call_->context, std::chrono::steady_clock::now() + kDeadline, {});
  // One kind a call; the other kind's turn comes when this one was answered.
  if (!leases_.empty()) {
    v1::ReleaseRequest request;
    request.set_session_id(session_);
    request.mutable_lease_ids()->Add(leases_.begin(), leases_.end());
    leases_.clear();
    call_->release = stub_->PrepareAsyncRelease(&call_->context, request, &answers_);
  } else {
    v1::AbortRequest request;
    request.set_session_id(session_);
    request.mutable_reservation_ids()->Add(reservations_.begin(), reservations_.end());
    reservations_.clear();
    call_->abort = stub_->PrepareAsyncAbort(&call_->context, request, &answers_);
  }
  return call_.get();
}

void ReleaseQueue::Start(Call* call) {
  if (call == nullptr) return;
  if (call->release != nullptr) {
    call->release->StartCall();
    call->release->Finish(&call->released, &call->status, this);
  } else {
    call->abort->StartCall();
    call->abort->Finish(&call->aborted, &call->status, this);
  }
}

}  // namespace cairn::client
