// GrpcCacheClient::RunFetch: the stream of one fetch.

#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <stop_token>

#include "clients/cpp/src/fetch_frame.h"
#include "clients/cpp/src/frames.h"
#include "clients/cpp/src/grpc_cache_client.h"
#include "clients/cpp/src/raw_call.h"

namespace cairn::client {

Status GrpcCacheClient::RunFetch(const Lease& lease, const FetchRange& range,
                                 SliceAssembler& assembler, const FetchOptions& options,
                                 TimePoint deadline, bool* got_bytes) {
  CAIRN_RETURN_IF_ERROR(FetchPass(lease, range, /*node_verifies=*/false, assembler, options, deadline, got_bytes));
  // Wrong slices: asked to look for itself, the node removes a bad copy and may have another one.
  for (const uint32_t block : assembler.BeginRetry()) {
    const FetchRange again = {.block_begin = block,
                              .block_end = block + 1,
                              .layer_begin = range.layer_begin,
                              .layer_end = range.layer_end};
    const Status status = FetchPass(lease, again, /*node_verifies=*/true, assembler, options, deadline, got_bytes);
    // Of the other slices all are good: the lease may have ended meanwhile, and only this block is lost.
    if (status.code() == StatusCode::kCancelled) return status;
  }
  assembler.EndRetry();
  return OkStatus();
}

Status GrpcCacheClient::FetchPass(const Lease& lease, const FetchRange& range, bool node_verifies,
                                  SliceAssembler& assembler, const FetchOptions& options,
                                  TimePoint deadline, bool* got_bytes) {
  v1::FetchRequest request;
  request.set_session_id(lease.info().session);
  request.set_lease_id(lease.info().id);
  request.set_block_begin(range.block_begin);
  request.set_block_end(range.block_end);
  request.set_layer_begin(range.layer_begin);
  request.set_layer_end(range.layer_end);
  request.set_reader_verifies(!node_verifies);

  const DataConnections::Use data = data_.Take();
  RawCall call(data.stub(), "/cairn.v1.Cache/Fetch", deadline, options.trace);
  const std::stop_callback on_cancel(options.cancel, [&call] { call.Cancel(); });
  const auto cancelled = [] {
    return Errorf(StatusCode::kCancelled, "fetch: cancelled by the caller");
  };
  // Moved on by each complete slice.
  TimePoint progress = std::chrono::steady_clock::now() + options.progress;
  const auto wait_until = [&] { return std::min(progress, deadline); };
  const auto late = [&] {
    if (options.cancel.stop_requested()) return cancelled();
    const bool total = std::chrono::steady_clock::now() >= deadline;
    return Errorf(StatusCode::kDeadlineExceeded, "fetch: {}",
                  total ? "longer than its deadline" : "no new slice in time");
  };

  call.Send(ToFrame(request));
  RawCall::Outcome outcome = RawCall::Outcome::kDone;
  while (true) {
    grpc::ByteBuffer frame;
    outcome = call.Read(&frame, /*ahead=*/true, wait_until());
    if (outcome != RawCall::Outcome::kDone) break;
    // A token that was stopped before the callback was in place is seen here, too.
    if (options.cancel.stop_requested()) return cancelled();
    *got_bytes = true;
    grpc::ProtoBufferReader bytes(&frame);
    CAIRN_ASSIGN_OR_RETURN(const FetchFrameView view, ParseFetchFrame(&bytes));
    const uint64_t before = assembler.counts().slices;
    for (const SlicePiece& piece : view.pieces) CAIRN_RETURN_IF_ERROR(assembler.Take(piece));
    for (const auto& [block, reason] : view.failed) assembler.Fail(block, reason);
    if (assembler.counts().slices != before || !view.failed.empty()) {
      progress = std::chrono::steady_clock::now() + options.progress;
    }
    if (std::chrono::steady_clock::now() >= wait_until()) return late();
  }
  if (outcome == RawCall::Outcome::kTimeout) return late();
  const Status status =
      call.Finish(std::min(deadline, std::chrono::steady_clock::now() + options.progress));
  if (options.cancel.stop_requested()) return cancelled();
  CAIRN_RETURN_IF_ERROR(status);
  if (assembler.open_slices() > 0) {
    return Errorf(StatusCode::kDataLoss, "fetch: the node ended it with {} slices unfinished",
                  assembler.open_slices());
  }
  return OkStatus();
}

}  // namespace cairn::client
