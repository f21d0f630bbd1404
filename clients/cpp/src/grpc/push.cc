#include "clients/cpp/src/grpc/push.h"

#include <algorithm>
#include <utility>

#include "clients/cpp/src/grpc/channel.h"
#include "clients/cpp/src/grpc/frame_call.h"
#include "common/rpc/frames.h"
#include "common/rpc/status.h"
#include "protocol/frames/push_frame_writer.h"
#include "protocol/wire/convert.h"
#include "protocol/wire/message_limits.h"

namespace cairn::client {
namespace {

constexpr size_t kGroupParts = 256;
constexpr uint64_t kGroupBytes = 8ull << 20;

uint32_t Millis(Duration d) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(ms, 0, 600'000));
}

// Somebody else's copy is as good as ours: keys name content.
Status StoredIsFine(const Status& status) {
  return status.code() == StatusCode::kAlreadyExists ? OkStatus() : status;
}

}  // namespace

Pusher::Pusher(const Channels& channels, const TransportCall& call, const Digest& fingerprint,
               const PushOptions& options)
    : channels_(channels),
      session_(*call.session),
      fingerprint_(fingerprint),
      options_(options),
      deadline_(call.deadline) {}

PushReport Pusher::Push(std::span<const PartToPush> parts) {
  PushReport report = {.results = std::vector<Status>(parts.size())};
  size_t begin = 0;
  while (begin < parts.size()) {
    size_t end = begin;
    uint64_t bytes = 0;
    while (end < parts.size() && end - begin < kGroupParts &&
           (end == begin || bytes + parts[end].bytes.size() <= kGroupBytes)) {
      bytes += parts[end].bytes.size();
      ++end;
    }
    const std::span<Status> results(report.results);
    report.status =
        PushGroup(parts.subspan(begin, end - begin), results.subspan(begin, end - begin));
    if (!report.status.ok()) {
      std::ranges::fill(results.subspan(begin), report.status);
      break;
    }
    begin = end;
  }
  return report;
}

Status Pusher::PushGroup(std::span<const PartToPush> parts, std::span<Status> results) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<Filled> reserved, Reserve(parts, results));
  if (reserved.empty()) return OkStatus();
  const Result<bool> committed = Stream(parts, reserved, results);
  Status status = committed.status();
  if (status.ok() && !*committed) status = Commit(reserved, results);
  if (!status.ok()) {
    std::vector<uint64_t> ids;
    ids.reserve(reserved.size());
    for (const Filled& f : reserved) ids.push_back(f.reservation);
    channels_.releases->AbortReservations(session_.id, ids);
  }
  return status;
}

Result<std::vector<Pusher::Filled>> Pusher::Reserve(std::span<const PartToPush> parts,
                                                    std::span<Status> results) {
  v1::ReserveRequest request;
  request.set_session_id(session_.id);
  request.set_fingerprint(std::string(fingerprint_.View()));
  request.set_ttl_ms(Millis(options_.reservation_ttl));
  for (const PartToPush& part : parts) {
    v1::ReservePart* to = request.add_parts();
    to->set_key(std::string(part.key.View()));
    if (part.parent) to->set_parent(std::string(part.parent->View()));
    to->set_first_position(part.first_position);
    wire::ToProto(part.rect, to->mutable_part());
    to->set_bytes(part.bytes.size());
    to->set_compute_seconds(part.compute_seconds);
  }
  grpc::ClientContext context;
  Prepare(context, deadline_, options_.trace);
  v1::ReserveResponse response;
  CAIRN_RETURN_IF_ERROR(rpc::FromGrpc(channels_.control->Reserve(&context, request, &response)));
  if (response.results_size() != request.parts_size()) {
    return Errorf(StatusCode::kInternal, "push: {} results for {} reservations",
                  response.results_size(), parts.size());
  }
  std::vector<Filled> reserved;
  for (int i = 0; i < response.results_size(); ++i) {
    const size_t part = static_cast<size_t>(i);
    const v1::PartResult& result = response.results(i);
    if (result.code() == 0) reserved.push_back({part, result.reservation_id()});
    results[part] = StoredIsFine(wire::FromProto(result));
  }
  return reserved;
}

Result<bool> Pusher::Stream(std::span<const PartToPush> parts, const std::vector<Filled>& reserved,
                            std::span<Status> results) {
  FrameCall call(channels_.data, "/cairn.v1.Cache/Push", deadline_, options_.trace);
  const auto late = [] {
    return Errorf(StatusCode::kDeadlineExceeded, "push: the node did not take the bytes in time");
  };
  std::vector<uint64_t> ids;
  ids.reserve(reserved.size());
  for (const Filled& f : reserved) ids.push_back(f.reservation);
  frames::PushFrameWriter frame(session_.id, ids, session_.max_frame_bytes);
  FrameCall::Outcome outcome = FrameCall::Outcome::kDone;
  const auto send = [&](bool last) { outcome = call.Write(frame.Take(), last, deadline_); };
  for (size_t i = 0; i < reserved.size(); ++i) {
    const PartToPush& part = parts[reserved[i].part];
    uint64_t offset = 0;
    while (outcome == FrameCall::Outcome::kDone && offset < part.bytes.size()) {
      offset += frame.Add(reserved[i].reservation, offset, part.bytes.subspan(offset), part.hold);
      const bool last = i + 1 == reserved.size() && offset == part.bytes.size();
      if (frame.full() || last) send(last);
    }
  }
  if (outcome == FrameCall::Outcome::kTimeout) return late();
  grpc::ByteBuffer answer;
  if (outcome == FrameCall::Outcome::kDone) {
    outcome = call.Read(&answer, /*ahead=*/false, deadline_);
  }
  if (outcome == FrameCall::Outcome::kTimeout) return late();
  CAIRN_RETURN_IF_ERROR(call.Finish(deadline_));
  v1::PushResponse response;
  if (outcome == FrameCall::Outcome::kDone && !rpc::FromFrame(answer, &response)) {
    return Errorf(StatusCode::kInternal, "push: the node's answer is not a cairn.v1.PushResponse");
  }
  // A node that is older than this answer commits in a call of its own.
  if (response.committed_size() == 0) return false;
  CAIRN_RETURN_IF_ERROR(TakeResults(response.committed(), reserved, results));
  return true;
}

Status Pusher::Commit(const std::vector<Filled>& reserved, std::span<Status> results) {
  v1::CommitRequest request;
  request.set_session_id(session_.id);
  for (const Filled& f : reserved) request.add_reservation_ids(f.reservation);
  grpc::ClientContext context;
  Prepare(context, deadline_, options_.trace);
  v1::CommitResponse response;
  CAIRN_RETURN_IF_ERROR(rpc::FromGrpc(channels_.control->Commit(&context, request, &response)));
  return TakeResults(response.results(), reserved, results);
}

Status Pusher::TakeResults(const google::protobuf::RepeatedPtrField<v1::PartResult>& from,
                           const std::vector<Filled>& reserved, std::span<Status> results) {
  if (static_cast<size_t>(from.size()) != reserved.size()) {
    return Errorf(StatusCode::kInternal, "push: {} results for {} commits", from.size(),
                  reserved.size());
  }
  for (size_t i = 0; i < reserved.size(); ++i) {
    results[reserved[i].part] = StoredIsFine(wire::FromProto(from[static_cast<int>(i)]));
  }
  return OkStatus();
}

}  // namespace cairn::client
