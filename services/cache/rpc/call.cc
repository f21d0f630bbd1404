#include "services/cache/rpc/call.h"

#include "clients/cpp/wire/convert.h"
#include "services/common/log/log.h"

namespace cairn::cache {

Call::Call(RpcContext* rpc, Method method, const grpc::ServerContextBase* grpc)
    : rpc_(rpc), method_(method), grpc_(grpc), begin_(rpc->clock->Now()) {
  rpc_->metrics->Begin(method_);
}

Call::~Call() {
  if (!ended_) End(Errorf(StatusCode::kCancelled, "the call was abandoned"));
}

Status Call::ReadTrace() {
  const auto& metadata = grpc_->client_metadata();
  const auto it = metadata.find(wire::kTraceMetadata);
  if (it == metadata.end()) return OkStatus();
  const std::string_view trace(it->second.data(), it->second.size());
  if (!wire::IsTrace(trace)) {
    rpc_->metrics->Rejected(Rejection::kInvalid);
    return InvalidArgument("metadata {}: got {} characters, expected 1 to 64 of [A-Za-z0-9-]",
                           wire::kTraceMetadata, trace.size());
  }
  trace_ = trace;
  return OkStatus();
}

Status Call::Admit() {
  CAIRN_RETURN_IF_ERROR(ReadTrace());
  Gate::Refusal refusal = Gate::Refusal::kNone;
  pass_ = rpc_->gate->Enter(&refusal);
  switch (refusal) {
    case Gate::Refusal::kNone:
      return OkStatus();
    case Gate::Refusal::kFull:
      rpc_->metrics->Rejected(Rejection::kOverload);
      return Errorf(StatusCode::kResourceExhausted,
                    "the node already works on {} calls (rpc.max_in_flight)",
                    rpc_->options.max_in_flight);
    case Gate::Refusal::kClosed:
      break;
  }
  rpc_->metrics->Rejected(Rejection::kDraining);
  return Errorf(StatusCode::kUnavailable, "the node is shutting down");
}

Status Call::AdmitStream() {
  CAIRN_RETURN_IF_ERROR(ReadTrace());
  if (!rpc_->draining.load(std::memory_order_relaxed)) return OkStatus();
  rpc_->metrics->Rejected(Rejection::kDraining);
  return Errorf(StatusCode::kUnavailable, "the node is shutting down");
}

grpc::Status Call::End(const Status& status) {
  ended_ = true;
  const bool stream = method_ == Method::kOpenSession || method_ == Method::kWatch;
  const double seconds = Seconds(rpc_->clock->Now() - begin_);
  rpc_->metrics->End(method_, status.code(), stream ? -1 : seconds);
  // A client that left ends its session by cancelling: nothing to report.
  const bool failed = !status.ok() && !(stream && status.code() == StatusCode::kCancelled);
  const log::Level level = failed && !trace_.empty() ? log::Level::kInfo : log::Level::kDebug;
  if (log::Enabled(level)) {
    log::Write(level, failed ? "rpc_failed" : "rpc",
               {{"method", std::string(Name(method_))},
                {"trace", trace_},
                {"seconds", log::Num(seconds)},
                {"status", status.ok() ? "OK" : ToString(status)},
                {"peer", grpc_->peer()}});
  }
  return wire::ToGrpc(status);
}

TimePoint Call::Deadline(Duration limit) const {
  const TimePoint latest = rpc_->clock->Now() + limit;
  const auto left = grpc_->deadline() - std::chrono::system_clock::now();
  // Without a deadline gRPC says the end of time, whose difference does not fit a Duration.
  if (left > std::chrono::hours(24)) return latest;
  return std::min(latest, rpc_->clock->Now() + std::chrono::duration_cast<Duration>(left));
}

Status Gone() { return Errorf(StatusCode::kCancelled, "the client went away"); }

Status Decode(const grpc::ByteBuffer& frame, google::protobuf::Message* message) {
  if (wire::FromFrame(frame, message)) return OkStatus();
  return InvalidArgument("request: expected a message of type {}", message->GetTypeName());
}

std::string Path(std::string_view service, Method method) {
  return fmt::format("/{}/{}", service, Name(method));
}

bool Call::cancelled() const { return grpc_->IsCancelled(); }

}  // namespace cairn::cache
