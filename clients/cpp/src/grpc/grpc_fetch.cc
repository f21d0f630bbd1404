#include "clients/cpp/src/grpc/grpc_fetch.h"

#include <algorithm>
#include <stop_token>
#include <utility>

#include "clients/cpp/src/grpc/frame_call.h"
#include "common/rpc/frames.h"
#include "protocol/frames/fetch_frame_reader.h"
#include "protocol/wire/convert.h"
#include "protocol/wire/joint.h"

namespace cairn::client {
namespace {

// Wrong slices of a fetch that are asked for once more. More are no accident.
constexpr size_t kMaxRetries = 64;

// The views of the data move along.
SlicePiece ToPiece(frames::FetchFrameView::Piece& from) {
  return {.slice = {.block = from.slice.block,
                    .part = from.slice.part,
                    .layer = from.slice.layer,
                    .codec = from.slice.codec,
                    .slice_bytes = from.slice.slice_bytes,
                    .xxh3 = from.slice.xxh3,
                    .tier = wire::TierFromProto(from.slice.tier)},
          .offset = from.offset,
          .chunks = std::move(from.data)};
}

}  // namespace

Result<MatchOutcome> ToOutcome(const v1::MatchResponse& response, size_t asked,
                               const JointQuestion& joint) {
  if (joint.asked()) asked *= joint.pools.size();
  if (response.matched_blocks() > asked) {
    return Errorf(StatusCode::kInternal, "match: the node matched {} of {} blocks",
                  response.matched_blocks(), asked);
  }
  MatchOutcome outcome;
  outcome.matched_blocks = response.matched_blocks();
  outcome.miss_reason = wire::MissReasonFromProto(response.miss_reason());
  outcome.bytes = response.bytes();
  outcome.estimated_fetch_seconds = response.estimated_fetch_seconds();
  for (const v1::TierRun& run : response.tiers()) {
    outcome.tiers.push_back(
        {wire::TierFromProto(run.tier()), run.blocks(), run.bytes(), run.seconds()});
  }
  if (joint.asked()) {
    CAIRN_ASSIGN_OR_RETURN(outcome.joint,
                           wire::FromProto(response.joint(), joint, outcome.matched_blocks));
  }
  return outcome;
}

GrpcFetch::GrpcFetch(DataConnections* connections, const Clock* clock, FetchSink* sink,
                     uint32_t blocks, const FetchOptions& options, TimePoint deadline)
    : connections_(*connections),
      clock_(*clock),
      assembler_(sink, {.blocks = blocks, .verify = options.verify, .max_retries = kMaxRetries}),
      options_(options),
      deadline_(deadline) {}

FetchReport GrpcFetch::Report(Status status) const {
  return {.status = std::move(status), .counts = assembler_.counts(), .node_answers = got_bytes_};
}

Status GrpcFetch::RunAgain(v1::FetchRequest request) {
  // Wrong slices: asked to look for itself, the node removes a bad copy and may have another one.
  for (const uint32_t block : assembler_.BeginRetry()) {
    request.set_block_begin(block);
    request.set_block_end(block + 1);
    request.set_reader_verifies(false);
    const Status status = Run(request, nullptr);
    // All other slices are good: the lease may have ended meanwhile, and only this block is lost.
    if (status.code() == StatusCode::kCancelled) return status;
  }
  assembler_.EndRetry();
  return OkStatus();
}

void GrpcFetch::GiveUpWrongSlices() {
  (void)assembler_.BeginRetry();
  assembler_.EndRetry();
}

Status GrpcFetch::Cancelled() {
  return Errorf(StatusCode::kCancelled, "fetch: cancelled by the caller");
}

Status GrpcFetch::Late(const Lookup* lookup) const {
  if (options_.cancel.stop_requested()) return Cancelled();
  const bool total = clock_.Now() >= deadline_;
  return Errorf(StatusCode::kDeadlineExceeded, "fetch: {}",
                total                                  ? "it took longer than its deadline"
                : lookup != nullptr && !lookup->answer ? "no answer to its lookup in time"
                                                       : "no new slice in time");
}

Status GrpcFetch::Take(grpc::ByteBuffer* frame, Lookup* lookup) {
  got_bytes_ = true;
  CAIRN_ASSIGN_OR_RETURN(frames::FetchFrameView view, frames::ReadFetchFrame(frame));
  bool moved = false;
  if (lookup != nullptr && !lookup->answer && view.matched) {
    CAIRN_ASSIGN_OR_RETURN(lookup->answer, ToOutcome(*view.matched, lookup->asked));
    moved = true;
  }
  const uint64_t before = assembler_.counts().slices;
  for (auto& piece : view.pieces) CAIRN_RETURN_IF_ERROR(assembler_.Take(ToPiece(piece)));
  for (const frames::FailedBlock& failed : view.failed) {
    assembler_.Fail(failed.block, wire::MissReasonFromProto(failed.reason));
  }
  if (moved || assembler_.counts().slices != before || !view.failed.empty()) {
    progress_ = clock_.Now() + options_.progress;
  }
  return OkStatus();
}

Status GrpcFetch::Run(const v1::FetchRequest& request, Lookup* lookup) {
  const DataConnections::Use data = connections_.Take();
  FrameCall call(data.stub(), "/cairn.v1.Cache/Fetch", deadline_, options_.trace);
  const std::stop_callback on_cancel(options_.cancel, [&call] { call.Cancel(); });
  progress_ = lookup != nullptr ? lookup->deadline : clock_.Now() + options_.progress;
  const auto wait_until = [&] { return std::min(progress_, deadline_); };

  call.Send(rpc::ToFrame(request));
  FrameCall::Outcome outcome = FrameCall::Outcome::kDone;
  while (true) {
    grpc::ByteBuffer frame;
    outcome = call.Read(&frame, /*ahead=*/true, wait_until());
    if (outcome != FrameCall::Outcome::kDone) break;
    // A token that was stopped before the callback was in place is seen here, too.
    if (options_.cancel.stop_requested()) return Cancelled();
    CAIRN_RETURN_IF_ERROR(Take(&frame, lookup));
    if (clock_.Now() >= wait_until()) return Late(lookup);
  }
  if (outcome == FrameCall::Outcome::kTimeout) return Late(lookup);
  const Status status = call.Finish(std::min(deadline_, clock_.Now() + options_.progress));
  if (options_.cancel.stop_requested()) return Cancelled();
  CAIRN_RETURN_IF_ERROR(status);
  if (assembler_.open_slices() > 0) {
    return Errorf(StatusCode::kDataLoss, "fetch: the node ended it with {} slices unfinished",
                  assembler_.open_slices());
  }
  return OkStatus();
}

}  // namespace cairn::client
