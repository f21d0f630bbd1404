#include "clients/cpp/src/grpc/grpc_release_sender.h"

#include "clients/cpp/src/grpc/channel.h"

namespace cairn::client {
namespace {

constexpr Duration kDeadline = std::chrono::seconds(2);

}  // namespace

GrpcReleaseSender::~GrpcReleaseSender() {
  MutexLock lock(mu_);
  if (call_ != nullptr) call_->context.TryCancel();
  answers_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (answers_.Next(&tag, &ok)) {
  }
}

void GrpcReleaseSender::Send(ReleaseBatch batch) {
  // Held until gRPC has the whole call: its answer must not be taken before.
  MutexLock lock(mu_);
  call_ = std::make_unique<Call>();
  Prepare(call_->context, clock_->Now() + kDeadline, {});
  if (batch.kind == ReleaseBatch::Kind::kLeases) {
    v1::ReleaseRequest request;
    request.set_session_id(batch.session);
    request.mutable_lease_ids()->Add(batch.ids.begin(), batch.ids.end());
    call_->release = stub_->PrepareAsyncRelease(&call_->context, request, &answers_);
    call_->release->StartCall();
    call_->release->Finish(&call_->released, &call_->status, this);
  } else {
    v1::AbortRequest request;
    request.set_session_id(batch.session);
    request.mutable_reservation_ids()->Add(batch.ids.begin(), batch.ids.end());
    call_->abort = stub_->PrepareAsyncAbort(&call_->context, request, &answers_);
    call_->abort->StartCall();
    call_->abort->Finish(&call_->aborted, &call_->status, this);
  }
}

bool GrpcReleaseSender::Answered() {
  void* tag = nullptr;
  bool ok = false;
  // Not under the lock: gRPC reads what has come for any call meanwhile.
  const auto answer = answers_.AsyncNext(&tag, &ok, CallDeadline(TimePoint::min()));
  if (answer != grpc::CompletionQueue::GOT_EVENT) return false;
  MutexLock lock(mu_);
  call_.reset();
  return true;
}

}  // namespace cairn::client
