#include "clients/cpp/src/grpc/event_stream.h"

#include <atomic>

#include "cairn/v1/cache.pb.h"
#include "clients/cpp/src/grpc/frame_call.h"
#include "common/rpc/frames.h"
#include "protocol/wire/convert.h"

namespace cairn::client {
namespace {

// nullopt: an event of a kind that this version does not know.
Result<std::optional<CacheEvent>> EventFromProto(const v1::Event& in) {
  if (in.kind() < v1::Event::KIND_STORED || in.kind() > v1::Event::KIND_NAMESPACE_DROPPED) {
    return std::optional<CacheEvent>();
  }
  CacheEvent out;
  out.kind = static_cast<CacheEvent::Kind>(in.kind());
  out.node_epoch = in.node_epoch();
  out.sequence = in.sequence();
  if (!in.fingerprint().empty()) {
    CAIRN_ASSIGN_OR_RETURN(out.fingerprint, Digest::FromBytes(in.fingerprint(), "fingerprint"));
  }
  if (!in.key().empty()) {
    CAIRN_ASSIGN_OR_RETURN(out.key, Digest::FromBytes(in.key(), "key"));
  }
  if (!in.parent().empty()) {
    CAIRN_ASSIGN_OR_RETURN(out.parent, Digest::FromBytes(in.parent(), "parent"));
  }
  out.tier = wire::TierFromProto(in.tier()).value_or(TierKind::kHost);
  out.pool = in.pool();
  return std::optional(out);
}

class GrpcEventStream final : public EventStream {
 public:
  GrpcEventStream(grpc::GenericStub* stub, const std::string& session, const WatchOptions& options,
                  const Clock* clock)
      : clock_(clock), call_(stub, "/cairn.v1.Cache/Watch", std::nullopt, {}) {
    if (options.fingerprint) request_.set_fingerprint(std::string(options.fingerprint->View()));
    request_.set_snapshot(options.snapshot);
    request_.set_session_id(session);
  }

  Result<std::optional<CacheEvent>> Next(Duration wait) override {
    const TimePoint deadline = clock_->Now() + wait;
    while (true) {
      grpc::ByteBuffer frame;
      const FrameCall::Outcome outcome = Step(&frame, deadline);
      if (outcome == FrameCall::Outcome::kTimeout) return std::optional<CacheEvent>();
      if (outcome == FrameCall::Outcome::kClosed) {
        const Status status = call_.Finish(deadline);
        if (cancelled_.load(std::memory_order_relaxed)) {
          return Errorf(StatusCode::kCancelled, "watch: cancelled");
        }
        return status.ok() ? Errorf(StatusCode::kUnavailable, "watch: the node ended it") : status;
      }
      if (state_ != State::kReading) continue;
      v1::Event event;
      if (!rpc::FromFrame(frame, &event)) {
        return Errorf(StatusCode::kDataLoss, "watch: malformed event");
      }
      CAIRN_ASSIGN_OR_RETURN(std::optional<CacheEvent> known, EventFromProto(event));
      if (known) return known;
    }
  }

  void Cancel() override {
    cancelled_.store(true, std::memory_order_relaxed);
    call_.Cancel();
  }

 private:
  enum class State { kAsking, kListening, kReading };

  // One step of the call; each may take more than one Next.
  FrameCall::Outcome Step(grpc::ByteBuffer* frame, TimePoint deadline) {
    FrameCall::Outcome outcome = FrameCall::Outcome::kDone;
    switch (state_) {
      case State::kAsking:
        outcome = call_.Write(rpc::ToFrame(request_), true, deadline);
        if (outcome == FrameCall::Outcome::kDone) state_ = State::kListening;
        break;
      case State::kListening:
      case State::kReading:
        outcome = call_.Read(frame, /*ahead=*/false, deadline);
        if (outcome == FrameCall::Outcome::kDone) state_ = State::kReading;
        break;
    }
    return outcome;
  }

  const Clock* const clock_;
  FrameCall call_;
  v1::WatchRequest request_;
  State state_ = State::kAsking;
  std::atomic<bool> cancelled_{false};
};

}  // namespace

std::unique_ptr<EventStream> NewEventStream(grpc::GenericStub* stub, const std::string& session,
                                            const WatchOptions& options, const Clock* clock) {
  return std::make_unique<GrpcEventStream>(stub, session, options, clock);
}

}  // namespace cairn::client
