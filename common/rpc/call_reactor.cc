#include "common/rpc/call_reactor.h"

#include <utility>

namespace cairn::rpc {

void RawCall::ReadDone(bool ok) {
  reactor_->OnReadDone(ok);
  Release();
}

void RawCall::WriteDone(bool ok) {
  reactor_->OnWriteDone(ok);
  Release();
}

void RawCall::Finished(bool /*ok*/) { Release(); }

void RawCall::Over(bool /*ok*/) {
  cancelled_ = context_.IsCancelled();
  // Before there is a reactor, whoever makes it looks for itself.
  if (cancelled_ && reactor_ != nullptr) reactor_->OnCancel();
  Release();
}

void RawCall::Release() {
  if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) reactor_->OnDone();
}

CallReactor::CallReactor(std::unique_ptr<RawCall> call) : call_(std::move(call)) {
  call_->reactor_ = this;
}

void CallReactor::StartRead(grpc::ByteBuffer* frame) {
  call_->pending_.fetch_add(1, std::memory_order_relaxed);
  call_->io_.Read(frame, &call_->read_);
}

void CallReactor::StartWrite(const grpc::ByteBuffer* frame) {
  call_->pending_.fetch_add(1, std::memory_order_relaxed);
  call_->io_.Write(*frame, &call_->write_);
}

void CallReactor::StartWriteAndFinish(const grpc::ByteBuffer* frame, const grpc::Status& status) {
  call_->io_.WriteAndFinish(*frame, grpc::WriteOptions(), status, &call_->finished_);
}

void CallReactor::Finish(const grpc::Status& status) {
  call_->io_.Finish(status, &call_->finished_);
}

}  // namespace cairn::rpc
