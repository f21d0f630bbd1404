#pragma once
// One streaming call of raw frames, driven by the calling thread, which can give up waiting at any
// moment.

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <optional>
#include <string>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"

namespace cairn::client {

// Not thread-safe, except for Cancel. Every wait ends at its deadline. The call then still runs,
// and the caller can wait for it again. Destroying it ends the call and does not wait for the peer.
class FrameCall {
 public:
  // `method` like "/cairn.v1.Cache/Fetch". The stub outlives the call. nullopt: the call as such
  // has no deadline. Nothing is sent before the first Send or Write, which takes the call's
  // metadata with it: one packet and one wake-up less.
  FrameCall(grpc::GenericStub* stub, const char* method, std::optional<TimePoint> deadline,
            const std::string& trace);
  ~FrameCall();
  FrameCall(const FrameCall&) = delete;
  FrameCall& operator=(const FrameCall&) = delete;

  enum class Outcome { kDone, kClosed, kTimeout };
  // kClosed: the stream has ended or broken, and Finish says how. `last`: nothing more will be
  // written.
  Outcome Write(const grpc::ByteBuffer& frame, bool last, TimePoint deadline);
  // The only frame, which is not waited for: reads tell how it went.
  void Send(const grpc::ByteBuffer& frame);
  // REQUIRES: something was sent. `ahead`: the next frame may arrive while this one is used, so up
  // to two are held.
  Outcome Read(grpc::ByteBuffer* frame, bool ahead, TimePoint deadline);
  // How the call ended. REQUIRES: an earlier kClosed, or everything written and read.
  Status Finish(TimePoint deadline);
  // Any thread.
  void Cancel() { context_.TryCancel(); }

 private:
  // Bits: a write and a read may be under way together.
  enum Step : uintptr_t { kWrite = 1, kRead = 2, kFinish = 4 };
  Outcome Await(uintptr_t steps, TimePoint deadline);
  void Begin(Step step);
  void BeginWrite(const grpc::ByteBuffer& frame, bool last);
  void BeginRead();
  void BeginFinish();

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  uintptr_t pending_ = 0;  // Steps under way.
  uintptr_t closed_ = 0;   // Steps that found the stream ended.
  bool started_ = false;
  bool finished_ = false;
  grpc::ByteBuffer read_;
  grpc::Status status_;
};

}  // namespace cairn::client
