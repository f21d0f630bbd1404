#pragma once
// The stream of one Fetch call: while one frame is sent, the next one is filled; never more, so memory is bounded by two frames.

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <optional>

#include "services/cache/rpc/call.h"
#include "services/cache/rpc/fetch_frame.h"

namespace cairn::cache {

// Deletes itself when gRPC is done with it. Filling runs on the fetch executor, since it waits for disk.
class FetchCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  FetchCall(RpcContext* rpc, const grpc::CallbackServerContext* context, const grpc::ByteBuffer& request);

 private:
  Status Begin(const grpc::ByteBuffer& request);
  void Fill();
  // Fills one frame. End of the stream: `last`. An error ends the stream after the frames before it.
  Result<grpc::ByteBuffer> BuildFrame(bool* last);
  // Starts what can be started now. Not with the lock held: gRPC may call back from inside.
  void Proceed();
  void OnWriteDone(bool ok) override;
  void OnDone() override;

  Call call_;
  // Owned by who fills.
  std::unique_ptr<FetchStream> stream_;
  FetchFrameBuilder builder_;
  std::optional<FetchedSlice> slice_;  // Sent up to offset_.
  size_t offset_ = 0;

  Mutex mu_;
  bool filling_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  bool end_ ABSL_GUARDED_BY(mu_) = false;  // Nothing more will be filled.
  Status status_ ABSL_GUARDED_BY(mu_);     // Of the end.
  std::optional<grpc::ByteBuffer> next_ ABSL_GUARDED_BY(mu_);
  grpc::ByteBuffer current_;  // Belongs to gRPC while writing_.
};

}  // namespace cairn::cache
