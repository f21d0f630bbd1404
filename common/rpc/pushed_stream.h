#pragma once
// A server stream whose messages come from outside of gRPC: heartbeats, events. Holds no thread.

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <memory>

#include "common/concurrency/mutex.h"
#include "common/rpc/call_reactor.h"

namespace cairn::rpc {

// Thread-safe. Owns itself from Start until gRPC has finished with it. Every other caller must hold
// a shared_ptr. It never calls gRPC with its lock held, because such a call may take long.
class PushedStream : public CallReactor {
 public:
  explicit PushedStream(std::unique_ptr<RawCall> call) : CallReactor(std::move(call)) {}

  // Keeps `self` alive until the stream is over. Call once, before anything is written.
  void Start(std::shared_ptr<PushedStream> self) { self_ = std::move(self); }
  // False while a write is under way, or after End: the message is dropped.
  bool TryWrite(const google::protobuf::MessageLite& message);
  // Ends the stream after the write under way. Only the first call counts.
  void End(const grpc::Status& status);
  // TryWrite would write.
  bool idle() const;

 protected:
  // A write has ended and the stream continues, so more may be written.
  virtual void OnIdle() {}
  // The stream has ended, for whatever reason. Called once, before the object may be destroyed.
  virtual void OnOver(const grpc::Status& status) = 0;

 private:
  void OnWriteDone(bool ok) final;
  void OnCancel() final;
  void OnDone() final;

  mutable Mutex mu_;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status status_;     // Constant once ending_ is set.
  grpc::ByteBuffer frame_;  // Belongs to gRPC while writing_.
  std::shared_ptr<PushedStream> self_;
};

}  // namespace cairn::rpc
