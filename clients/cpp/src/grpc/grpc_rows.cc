#include "clients/cpp/src/grpc/grpc_rows.h"

#include <algorithm>
#include <stop_token>
#include <utility>

#include "cairn/v1/cache.pb.h"
#include "clients/cpp/src/grpc/frame_call.h"
#include "clients/cpp/src/rows_of_slices.h"
#include "common/rpc/frames.h"
#include "protocol/wire/convert.h"

namespace cairn::client {

GrpcRows::GrpcRows(const Clock* clock, const RowsWanted& wanted, RowSink* sink,
                   const FetchOptions& options, TimePoint deadline)
    : clock_(*clock),
      wanted_(wanted),
      sink_(*sink),
      options_(options),
      deadline_(deadline),
      done_(wanted.groups.size()) {}

std::vector<size_t> GrpcRows::Rest() const {
  std::vector<size_t> rest;
  for (size_t i = 0; i < done_.size(); ++i) {
    if (!done_[i]) rest.push_back(i);
  }
  return rest;
}

RowReport GrpcRows::Run(DataConnections* connections, const LeaseInfo& lease) {
  RowReport report;
  report.status = Stream(connections, lease);
  report.counts = counts_;
  report.node_answers = got_bytes_;
  report.rest = Rest();
  return report;
}

Status GrpcRows::Late() const {
  if (options_.cancel.stop_requested()) {
    return Errorf(StatusCode::kCancelled, "fetch: cancelled by the caller");
  }
  return Errorf(
      StatusCode::kDeadlineExceeded, "fetch: {}",
      clock_.Now() >= deadline_ ? "it took longer than its deadline" : "no new rows in time");
}

Status GrpcRows::Stream(DataConnections* connections, const LeaseInfo& lease) {
  v1::FetchRequest request;
  request.set_session_id(lease.session);
  request.set_lease_id(lease.id);
  // The range is for nodes that do not know rows.
  request.set_block_begin(wanted_.groups.front().block);
  request.set_block_end(wanted_.groups.back().block + 1);
  request.set_layer_begin(wanted_.layer);
  request.set_layer_end(wanted_.layer + 1);
  for (const RowGroup& group : wanted_.groups) {
    v1::RowGroup& out = *request.add_rows();
    out.set_block(group.block);
    out.set_head(group.head);
    out.mutable_mask()->Add(group.mask.begin(), group.mask.end());
  }
  const DataConnections::Use data = connections->Take();
  FrameCall call(data.stub(), "/cairn.v1.Cache/Fetch", deadline_, options_.trace);
  const std::stop_callback on_cancel(options_.cancel, [&call] { call.Cancel(); });
  call.Send(rpc::ToFrame(request));
  FrameCall::Outcome outcome = FrameCall::Outcome::kDone;
  TimePoint until = std::min(deadline_, clock_.Now() + options_.progress);
  while (true) {
    grpc::ByteBuffer frame;
    outcome = call.Read(&frame, /*ahead=*/true, until);
    if (outcome != FrameCall::Outcome::kDone) break;
    if (options_.cancel.stop_requested()) return Late();
    got_bytes_ = true;
    CAIRN_ASSIGN_OR_RETURN(const frames::FetchFrameView view, frames::ReadFetchFrame(&frame));
    CAIRN_RETURN_IF_ERROR(Take(view));
    if (clock_.Now() >= until) return Late();
    if (!view.rows.empty() || !view.failed.empty()) {
      until = std::min(deadline_, clock_.Now() + options_.progress);
    }
  }
  if (outcome == FrameCall::Outcome::kTimeout) return Late();
  const Status status = call.Finish(std::min(deadline_, clock_.Now() + options_.progress));
  if (options_.cancel.stop_requested()) return Late();
  CAIRN_RETURN_IF_ERROR(status);
  const auto missing = std::count(done_.begin(), done_.end(), false);
  if (missing > 0) {
    return Errorf(StatusCode::kDataLoss, "fetch: the node ended it without {} groups of rows",
                  missing);
  }
  return OkStatus();
}

Status GrpcRows::Take(const frames::FetchFrameView& frame) {
  if (!frame.pieces.empty()) {
    return Errorf(StatusCode::kUnimplemented, "fetch: the node knows no rows, and sends slices");
  }
  for (const frames::FetchFrameView::Rows& rows : frame.rows) {
    CAIRN_RETURN_IF_ERROR(TakeRows(rows));
  }
  for (const frames::FailedBlock& failed : frame.failed) {
    const auto [begin, end] = GroupsOf(wanted_.groups, failed.block);
    for (size_t i = begin; i < end; ++i) {
      if (!done_[i]) sink_.OnRowsFailed(i, wire::MissReasonFromProto(failed.reason));
      done_[i] = true;
    }
  }
  return OkStatus();
}

Status GrpcRows::TakeRows(const frames::FetchFrameView::Rows& rows) {
  const frames::RowsHeader& header = rows.rows;
  auto [i, end] = GroupsOf(wanted_.groups, header.block);
  while (i < end && wanted_.groups[i].head != header.head) ++i;
  if (i == end || done_[i]) {
    return Errorf(StatusCode::kDataLoss,
                  "fetch: got rows of block {} head {}, which were not asked for, or twice",
                  header.block, header.head);
  }
  std::span<const std::byte> data;
  if (rows.data.size() == 1) {
    data = rows.data.front();
  } else {
    joined_.clear();
    for (const auto& chunk : rows.data) joined_.insert(joined_.end(), chunk.begin(), chunk.end());
    data = joined_;
  }
  const RowGroup& group = wanted_.groups[i];
  const RowsInfo info = {.block = header.block,
                         .layer = wanted_.layer,
                         .head = header.head,
                         .codec = header.codec,
                         .slice_xxh3 = header.slice_xxh3};
  done_[i] = true;
  if (!wanted_.layout.IsSize(wanted_.layer, header.codec, group.mask, data.size()) ||
      HashRows(info, group.mask, data) != header.xxh3) {
    ++counts_.corrupt_rows;
    sink_.OnRowsFailed(i, MissReason::kCorrupt);
    return OkStatus();
  }
  counts_.rows += group.rows();
  const auto tier = wire::TierFromProto(header.tier).value_or(TierKind::kHost);
  counts_.bytes[static_cast<size_t>(tier)] += data.size();
  return sink_.OnRows(i, info, data);
}

}  // namespace cairn::client
