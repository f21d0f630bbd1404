// The streams of GrpcCacheClient's Fetch and Get.

#include <algorithm>
#include <stop_token>

#include "clients/cpp/src/grpc/channel.h"
#include "clients/cpp/src/grpc/grpc_cache_client.h"
#include "clients/cpp/src/grpc/raw_call.h"
#include "common/rpc/frames.h"
#include "common/rpc/status.h"
#include "protocol/frames/fetch_frame_reader.h"
#include "protocol/wire/convert.h"

namespace cairn::client {
namespace {

// The views of the data move along.
SlicePiece ToPiece(frames::FetchFrameView::Piece& from) {
  return {.slice = {.block = from.slice.block,
                    .part = from.slice.part,
                    .layer = from.slice.layer,
                    .codec = from.slice.codec,
                    .slice_bytes = from.slice.slice_bytes,
                    .xxh3 = from.slice.xxh3,
                    .tier = wire::TierFromProto(from.slice.tier).value_or(TierKind::kHost)},
          .offset = from.offset,
          .chunks = std::move(from.data)};
}

}  // namespace

Status GrpcCacheClient::RunFetch(const Lease& lease, const FetchRange& range,
                                 SliceAssembler& assembler, const FetchOptions& options,
                                 TimePoint deadline, bool* got_bytes) {
  v1::FetchRequest request;
  request.set_session_id(lease.info().session);
  request.set_lease_id(lease.info().id);
  request.set_block_begin(range.block_begin);
  request.set_block_end(range.block_end);
  request.set_layer_begin(range.layer_begin);
  request.set_layer_end(range.layer_end);
  request.set_reader_verifies(true);
  CAIRN_RETURN_IF_ERROR(FetchPass(request, nullptr, assembler, options, deadline, got_bytes));
  return FetchAgain(request, assembler, options, deadline, got_bytes);
}

Status GrpcCacheClient::RunGet(const Session::Current& session, const Digest& fingerprint,
                               std::span<const BlockKey> keys, const LayerRange& layers,
                               Lookup& lookup, SliceAssembler& assembler,
                               const FetchOptions& options, TimePoint deadline, bool* got_bytes) {
  v1::FetchRequest request;
  request.set_session_id(session.id);
  request.set_layer_begin(layers.begin);
  request.set_layer_end(layers.end);
  request.set_reader_verifies(true);
  v1::Lookup& wanted = *request.mutable_lookup();
  wanted.set_fingerprint(std::string(fingerprint.View()));
  wanted.set_keys(wire::KeysToProto(keys));
  wanted.set_prefill_tokens_per_second(lookup.prefill_tokens_per_second);
  CAIRN_RETURN_IF_ERROR(FetchPass(request, &lookup, assembler, options, deadline, got_bytes));
  if (!lookup.answer) {
    return Errorf(StatusCode::kInternal, "fetch: the node did not report what it matched");
  }
  if (!assembler.has_wrong_slices()) return OkStatus();
  // The lease of the call has ended with it.
  v1::MatchRequest match;
  match.set_session_id(session.id);
  match.set_fingerprint(wanted.fingerprint());
  match.set_keys(wanted.keys());
  v1::MatchResponse matched;
  grpc::ClientContext context;
  Prepare(context, deadline, options.trace);
  CAIRN_RETURN_IF_ERROR(rpc::FromGrpc(stub_->Match(&context, match, &matched)));
  if (matched.lease_id() != 0) {
    const Lease lease = NewLease({.id = matched.lease_id(),
                                  .session = session.id,
                                  .fingerprint = fingerprint,
                                  .blocks = matched.matched_blocks(),
                                  .expires_at = deadline});
    request.clear_lookup();
    request.set_lease_id(matched.lease_id());
    return FetchAgain(request, assembler, options, deadline, got_bytes);
  }
  (void)assembler.BeginRetry();
  assembler.EndRetry();
  return OkStatus();
}

Status GrpcCacheClient::FetchAgain(v1::FetchRequest request, SliceAssembler& assembler,
                                   const FetchOptions& options, TimePoint deadline,
                                   bool* got_bytes) {
  // Wrong slices: asked to look for itself, the node removes a bad copy and may have another one.
  for (const uint32_t block : assembler.BeginRetry()) {
    request.set_block_begin(block);
    request.set_block_end(block + 1);
    request.set_reader_verifies(false);
    const Status status = FetchPass(request, nullptr, assembler, options, deadline, got_bytes);
    // Of the other slices all are good: the lease may have ended meanwhile, and only this block is
    // lost.
    if (status.code() == StatusCode::kCancelled) return status;
  }
  assembler.EndRetry();
  return OkStatus();
}

Status GrpcCacheClient::FetchPass(const v1::FetchRequest& request, Lookup* lookup,
                                  SliceAssembler& assembler, const FetchOptions& options,
                                  TimePoint deadline, bool* got_bytes) {
  const DataConnections::Use data = data_.Take();
  RawCall call(data.stub(), "/cairn.v1.Cache/Fetch", deadline, options.trace);
  const std::stop_callback on_cancel(options.cancel, [&call] { call.Cancel(); });
  const auto cancelled = [] {
    return Errorf(StatusCode::kCancelled, "fetch: cancelled by the caller");
  };
  // Moved on by each complete slice, and by the answer of a lookup.
  TimePoint progress =
      lookup != nullptr ? lookup->deadline : std::chrono::steady_clock::now() + options.progress;
  const auto wait_until = [&] { return std::min(progress, deadline); };
  const auto late = [&] {
    if (options.cancel.stop_requested()) return cancelled();
    const bool total = std::chrono::steady_clock::now() >= deadline;
    return Errorf(StatusCode::kDeadlineExceeded, "fetch: {}",
                  total                                  ? "it took longer than its deadline"
                  : lookup != nullptr && !lookup->answer ? "no answer to its lookup in time"
                                                         : "no new slice in time");
  };

  call.Send(rpc::ToFrame(request));
  RawCall::Outcome outcome = RawCall::Outcome::kDone;
  while (true) {
    grpc::ByteBuffer frame;
    outcome = call.Read(&frame, /*ahead=*/true, wait_until());
    if (outcome != RawCall::Outcome::kDone) break;
    // A token that was stopped before the callback was in place is seen here, too.
    if (options.cancel.stop_requested()) return cancelled();
    *got_bytes = true;
    CAIRN_ASSIGN_OR_RETURN(frames::FetchFrameView view, frames::ReadFetchFrame(&frame));
    if (lookup != nullptr && !lookup->answer && view.matched) {
      CAIRN_ASSIGN_OR_RETURN(lookup->answer, ToOutcome(*view.matched, lookup->asked));
      progress = std::chrono::steady_clock::now() + options.progress;
    }
    const uint64_t before = assembler.counts().slices;
    for (auto& piece : view.pieces) CAIRN_RETURN_IF_ERROR(assembler.Take(ToPiece(piece)));
    for (const frames::FailedBlock& failed : view.failed)
      assembler.Fail(failed.block, wire::MissReasonFromProto(failed.reason));
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
