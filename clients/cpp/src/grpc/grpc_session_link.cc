#include "clients/cpp/src/grpc/grpc_session_link.h"

#include <utility>

#include "cairn/v1/cache.pb.h"
#include "clients/cpp/src/grpc/channel.h"
#include "common/rpc/frames.h"

namespace cairn::client {
namespace {

constexpr Duration kFirstEvent = std::chrono::seconds(3);  // A node that accepts but says nothing.
// gRPC takes one event at a time, of any connection, and the one that tells may be the last.
constexpr int kThoroughReads = 8;

}  // namespace

GrpcSessionLink::GrpcSessionLink(std::shared_ptr<grpc::Channel> channel, Client client,
                                 const Clock* clock)
    : channel_(channel),
      reconnect_(channel),
      client_(std::move(client)),
      clock_(clock),
      stub_(std::move(channel)) {}

Result<SessionInfo> GrpcSessionLink::Open() {
  Drop();
  // The session's back-off is the pause between attempts to connect.
  reconnect_.BeforeCall(clock_->Now());
  stream_ = std::make_unique<FrameCall>(&stub_, "/cairn.v1.Cache/OpenSession", std::nullopt,
                                        std::string());
  ended_ = false;
  {
    MutexLock lock(mu_);
    if (cancelled_) return Errorf(StatusCode::kCancelled, "the client ends");
    to_cancel_ = stream_.get();
  }
  Result<SessionInfo> first = First();
  if (!first.ok()) Drop();
  return first;
}

Result<SessionInfo> GrpcSessionLink::First() {
  v1::OpenSessionRequest request;
  request.set_client_name(client_.name);
  request.set_tenant(client_.tenant);
  stream_->Send(rpc::ToFrame(request));
  const TimePoint deadline = clock_->Now() + kFirstEvent;
  grpc::ByteBuffer frame;
  switch (stream_->Read(&frame, /*ahead=*/true, deadline)) {
    case FrameCall::Outcome::kDone:
      break;
    case FrameCall::Outcome::kTimeout:
      return Errorf(StatusCode::kDeadlineExceeded, "the node did not open a session in time");
    case FrameCall::Outcome::kClosed: {
      const Status status = stream_->Finish(deadline);
      return status.ok() ? Errorf(StatusCode::kUnavailable, "the node ended the session") : status;
    }
  }
  v1::SessionEvent event;
  if (!rpc::FromFrame(frame, &event) || event.session_id().empty()) {
    return Errorf(StatusCode::kInternal, "the node opened a session without an id");
  }
  return SessionInfo{.id = event.session_id(),
                     .node_id = event.node_id(),
                     .host = event.host(),
                     .zone = event.zone(),
                     .node_epoch = event.node_epoch(),
                     .max_frame_bytes = event.max_frame_bytes(),
                     .local_socket = event.local_socket(),
                     .local_token = event.local_token()};
}

bool GrpcSessionLink::IsOpen(bool thorough) {
  for (int read = 0; read < (thorough ? kThoroughReads : 1); ++read) {
    grpc::ByteBuffer beat;
    const FrameCall::Outcome outcome = stream_->Read(&beat, /*ahead=*/true, TimePoint());
    if (outcome == FrameCall::Outcome::kClosed) {
      ended_ = true;
      return false;
    }
    // An event after the first tells that the node lives, and whether it is about to end.
    v1::SessionEvent event;
    if (outcome == FrameCall::Outcome::kDone && rpc::FromFrame(beat, &event)) {
      draining_ = event.draining();
    }
  }
  return true;
}

Status GrpcSessionLink::Close() {
  Status why;
  if (ended_) why = stream_->Finish(clock_->Now() + kFirstEvent);
  Drop();
  return why;
}

void GrpcSessionLink::Drop() {
  {
    MutexLock lock(mu_);
    to_cancel_ = nullptr;
  }
  stream_.reset();
  ended_ = draining_ = false;
}

void GrpcSessionLink::Wait(TimePoint until) {
  if (clock_->Now() >= until) return;
  // Inside of gRPC: a connection comes to be only while somebody waits there.
  channel_->WaitForStateChange(channel_->GetState(/*try_to_connect=*/true), CallDeadline(until));
}

void GrpcSessionLink::Cancel() {
  MutexLock lock(mu_);
  cancelled_ = true;
  if (to_cancel_ != nullptr) to_cancel_->Cancel();
}

}  // namespace cairn::client
