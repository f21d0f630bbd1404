#include "common/rpc/pushed_stream.h"

#include <utility>

#include "common/rpc/call.h"
#include "common/rpc/frames.h"
#include "common/rpc/status.h"

namespace cairn::rpc {

bool PushedStream::TryWrite(const google::protobuf::MessageLite& message) {
  grpc::ByteBuffer frame = ToFrame(message);
  {
    MutexLock lock(mu_);
    if (writing_ || ending_) return false;
    writing_ = true;
    frame_.Swap(&frame);
  }
  StartWrite(&frame_);
  return true;
}

void PushedStream::End(const grpc::Status& status) {
  {
    MutexLock lock(mu_);
    if (ending_) return;
    ending_ = true;
    status_ = status;
    if (writing_) return;  // OnWriteDone finishes.
  }
  Finish(status);
}

bool PushedStream::idle() const {
  MutexLock lock(mu_);
  return !writing_ && !ending_;
}

void PushedStream::OnWriteDone(bool ok) {
  bool finish = false;
  {
    MutexLock lock(mu_);
    writing_ = false;
    if (!ok && !ending_) {
      ending_ = true;
      status_ = ToGrpc(Gone());
      finish = true;
    } else {
      finish = ending_;
    }
  }
  if (finish) {
    Finish(status_);
  } else {
    OnIdle();
  }
}

void PushedStream::OnCancel() { End(ToGrpc(Gone())); }

void PushedStream::OnDone() {
  OnOver(status_);
  const std::shared_ptr<PushedStream> self = std::move(self_);  // May delete this.
}

}  // namespace cairn::rpc
