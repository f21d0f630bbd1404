#pragma once
// A server stream whose messages come from outside of gRPC: heartbeats, events. Holds no thread.

#include <memory>
#include <optional>

#include "services/cache/rpc/call.h"
#include "services/common/concurrency/mutex.h"

namespace cairn::cache {

// Thread-safe. Owns itself from Start until gRPC is done with it; whoever else calls it holds a shared_ptr. gRPC is never called with the
// lock held: it may have much to do.
template <typename Message>
class PushedStream : public CallReactor {
 public:
  explicit PushedStream(std::unique_ptr<RawCall> call) : CallReactor(std::move(call)) {}

  // Keeps `self` alive until the stream is over. Call once, before anything is written.
  void Start(std::shared_ptr<PushedStream> self) { self_ = std::move(self); }

  // False while a write is under way, or after End: the message is dropped.
  bool TryWrite(const Message& message) {
    grpc::ByteBuffer frame;
    CAIRN_CHECK(Encode(message, &frame).ok());
    {
      MutexLock lock(mu_);
      if (writing_ || ending_) return false;
      writing_ = true;
      frame_ = std::move(frame);
    }
    StartWrite(&frame_);
    return true;
  }

  // Ends the stream, after the write under way. The first call counts.
  void End(const grpc::Status& status) {
    {
      MutexLock lock(mu_);
      if (ending_) return;
      ending_ = true;
      status_ = status;
      if (writing_) return;  // OnWriteDone finishes.
    }
    Finish(status);
  }

  bool idle() const {
    MutexLock lock(mu_);
    return !writing_ && !ending_;
  }

 protected:
  // A write is over and the stream goes on: more may be written.
  virtual void OnIdle() {}
  // The stream is over, however it ended. Called once, before the object may go.
  virtual void OnOver(const grpc::Status& status) = 0;

 private:
  void OnWriteDone(bool ok) final {
    bool finish = false;
    {
      MutexLock lock(mu_);
      writing_ = false;
      if (!ok && !ending_) {
        ending_ = true;
        status_ = wire::ToGrpc(Gone());
        finish = true;
      } else {
        finish = ending_;
      }
    }
    if (finish) {
      Finish(status_);  // Constant once ending_ is set.
    } else {
      OnIdle();
    }
  }

  void OnCancel() final { End(wire::ToGrpc(Gone())); }

  void OnDone() final {
    OnOver(status_);
    std::shared_ptr<PushedStream> self = std::move(self_);  // May delete this.
  }

  mutable Mutex mu_;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status status_;
  grpc::ByteBuffer frame_;  // Belongs to gRPC while writing_.
  std::shared_ptr<PushedStream> self_;
};

}  // namespace cairn::cache
