#pragma once
// Releases and aborts over gRPC.

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>

#include <memory>

#include "cairn/common/clock.h"
#include "cairn/v1/cache.grpc.pb.h"
#include "clients/cpp/src/core/release_queue.h"
#include "common/concurrency/mutex.h"

namespace cairn::client {

// No thread waits for its answers. Thread-safe.
class GrpcReleaseSender final : public ReleaseSender {
 public:
  // Both outlive it.
  GrpcReleaseSender(v1::Cache::Stub* stub, const Clock* clock) : stub_(stub), clock_(clock) {}
  // Cancels the call under way.
  ~GrpcReleaseSender() override;

  void Send(ReleaseBatch batch) override;
  bool Answered() override;

 private:
  struct Call {
    grpc::ClientContext context;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::ReleaseResponse>> release;
    v1::ReleaseResponse released;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::AbortResponse>> abort;
    v1::AbortResponse aborted;
  };

  v1::Cache::Stub* const stub_;
  const Clock* const clock_;
  grpc::CompletionQueue answers_;
  Mutex mu_;
  std::unique_ptr<Call> call_ ABSL_GUARDED_BY(mu_);  // Under way.
};

}  // namespace cairn::client
