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

#include "services/common/clock/clock.h"
#include "services/common/status/status.h"

namespace cairn::client {

// Not thread-safe but for Cancel. Every wait ends at its deadline; the call is then still under way
// and can be waited for again. Destroying it ends the call and does not wait for the peer.
class RawCall {
 public:
  // `method` like "/cairn.v1.Cache/Fetch". The stub outlives the call. nullopt: the call as such
  // has no deadline.
  RawCall(grpc::GenericStub* stub, const char* method, std::optional<TimePoint> deadline,
          const std::string& trace);
  ~RawCall();
  RawCall(const RawCall&) = delete;
  RawCall& operator=(const RawCall&) = delete;

  enum class Outcome { kDone, kClosed, kTimeout };
  // kClosed: the stream has ended or broken; Finish says how.
  Outcome Start(TimePoint deadline);
  // `last`: nothing more will be written.
  Outcome Write(const grpc::ByteBuffer& frame, bool last, TimePoint deadline);
  Outcome Read(grpc::ByteBuffer* frame, TimePoint deadline);
  // How the call ended. REQUIRES: an earlier kClosed, or everything written and read.
  Status Finish(TimePoint deadline);
  // Any thread.
  void Cancel() { context_.TryCancel(); }

 private:
  enum class Step : intptr_t { kNone = 0, kStart, kWrite, kRead, kFinish };
  Outcome Await(TimePoint deadline);
  void Begin(Step step);

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  Step pending_ = Step::kNone;
  bool started_ = false;
  bool finished_ = false;
  grpc::ByteBuffer read_;
  grpc::Status status_;
};

}  // namespace cairn::client
