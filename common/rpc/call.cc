#include "common/rpc/call.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/log/log.h"
#include "common/net/credentials.h"
#include "common/rpc/frames.h"
#include "common/rpc/operator_socket.h"
#include "common/rpc/status.h"
#include "common/rpc/trace.h"

namespace cairn::rpc {
namespace {

// But for fields that are not known.
const FrameBounds& NoBounds() {
  static const FrameBounds none;
  return none;
}

// gRPC's name of an operator's connection says nothing to people.
std::string PeerText(const grpc::ServerContextBase& grpc) {
  const std::string peer = grpc.peer();
  const auto who = OperatorOf(peer);
  return who ? who->Describe() : peer;
}

Status DecodeMeasured(const grpc::ByteBuffer& frame, google::protobuf::Message* message) {
  if (FromFrame(frame, message)) return OkStatus();
  return InvalidArgument("request: expected a message of type {}", message->GetTypeName());
}

}  // namespace

Call::Call(const Context* context, Method* method, const grpc::ServerContextBase* grpc)
    : context_(context), method_(method), grpc_(grpc), begin_(context->clock->Now()) {
  method_->Begin();
}

Call::~Call() {
  if (!ended_) End(Errorf(StatusCode::kCancelled, "the call was abandoned"));
}

Status Call::ReadTrace() {
  const auto& metadata = grpc_->client_metadata();
  const auto it = metadata.find(kTraceMetadata);
  const std::string_view trace = it == metadata.end()
                                     ? std::string_view()
                                     : std::string_view(it->second.data(), it->second.size());
  if (metadata.count(kTraceMetadata) > 1) {
    Rejected(Rejection::kInvalid);
    return InvalidArgument("metadata {}: got {} values, expected one", kTraceMetadata,
                           metadata.count(kTraceMetadata));
  }
  if (it != metadata.end() && !IsTrace(trace)) {
    Rejected(Rejection::kInvalid);
    return InvalidArgument("metadata {}: got {} characters, expected 1 to 64 of [A-Za-z0-9-]",
                           kTraceMetadata, trace.size());
  }
  trace_ = trace;
  BeginSpan();
  return OkStatus();
}

void Call::BeginSpan() {
  if (context_->tracer == nullptr || method_->life() == Life::kOpenEnded) return;
  place_ = context_->tracer->Begin(trace_, method_->name() == context_->entry);
  if (place_) trace_ = place_->text();
}

void Call::AddSpan(std::string_view name, TimePoint begin, TimePoint end,
                   tracing::Attributes attributes) const {
  if (!place_) return;
  context_->tracer->End({.place = context_->tracer->Below(*place_),
                         .name = std::string(name),
                         .begin = begin,
                         .end = end,
                         .attributes = std::move(attributes)});
}

void Call::EndSpan(const Status& status) {
  if (!place_) return;
  context_->tracer->End(
      {.place = *place_,
       .kind = tracing::SpanKind::kServer,
       .name = method_->name(),
       .begin = begin_,
       .end = context_->clock->Now(),
       .attributes = {{"rpc.method", method_->path()}, {"peer", PeerText(*grpc_)}},
       .error = status.ok() ? "" : ToString(status)});
}

std::shared_ptr<const auth::KnownCaller> Call::FindCaller() const {
  const auto transport = grpc_->auth_context();
  if (const std::string_view certificate = net::CertificateOf(*transport); !certificate.empty()) {
    return context_->access->KnowCertificate(
        certificate, [&] { return auth::IdentityOf(net::NamesOf(transport.get())); });
  }
  const auto who = OperatorOf(grpc_->peer());
  return who ? auth::Access::KnowOperator(who->uid)
             : context_->access->Know(auth::IdentityOf(net::NamesOf(transport.get())));
}

Status Call::Authorize() {
  if (context_->access == nullptr) return OkStatus();
  caller_ = FindCaller();
  const std::optional<auth::Role> role = context_->role_of(method_->path());
  if (role && caller_->rights.May(*role)) return OkStatus();
  // A method that the table lacks is nobody's.
  const std::string_view needed = role ? auth::ToString(*role) : "of no caller";
  LogRefusal(needed, "");
  if (!caller_->identity.known()) {
    return Errorf(StatusCode::kUnauthenticated,
                  "the {} has a policy and does not know the caller, {}: expected a certificate "
                  "with one URI, a DNS name or a common name",
                  context_->process, net::CallerOf(*grpc_).Describe());
  }
  return Errorf(StatusCode::kPermissionDenied, "the policy does not let {} call {}, expected {}",
                caller_->identity.Describe(), method_->name(),
                role == auth::Role::kAny ? "a role" : fmt::format("the role {}", needed));
}

bool Call::Allows(auth::Role role, std::string_view tenant) const {
  if (caller_ == nullptr || caller_->rights.May(role, tenant)) return true;
  LogRefusal(auth::ToString(role), tenant);
  return false;
}

bool Call::AllowsAll(auth::Role role) const {
  return caller_ == nullptr || caller_->rights.MayForAll(role);
}

Status Call::CheckAllowed(auth::Role role, std::string_view tenant) const {
  if (Allows(role, tenant)) return OkStatus();
  return Errorf(StatusCode::kPermissionDenied,
                "tenant: got '{}', for which the policy does not make {} a {}", tenant,
                caller_->identity.Describe(), auth::ToString(role));
}

// Strangers can ask at will, so it has a rate, and each method its own.
void Call::LogRefusal(std::string_view role, std::string_view tenant) const {
  Rejected(Rejection::kAuth);
  log::WriteAtRateOf(fmt::format("refused {}", method_->name()), log::Level::kWarn, "call_refused",
                     {{"method", method_->name()},
                      {"role", std::string(role)},
                      {"tenant", std::string(tenant)},
                      {"identity", caller_->identity.Describe()},
                      {"peer", PeerText(*grpc_)},
                      {"trace", trace_}});
}

Status Call::Admit() {
  CAIRN_RETURN_IF_ERROR(ReadTrace());
  CAIRN_RETURN_IF_ERROR(Authorize());
  return TakePlace();
}

Status Call::TakePlace() {
  CAIRN_ASSIGN_OR_RETURN(pass_, TakePlaceAt(context_->gate, "calls", context_->limit));
  return OkStatus();
}

Result<Gate::Pass> Call::TakePlaceAt(Gate* gate, std::string_view things,
                                     std::string_view limit) const {
  Gate::Refusal refusal = Gate::Refusal::kNone;
  Gate::Pass pass = gate->Enter(grpc_->peer(), &refusal);
  switch (refusal) {
    case Gate::Refusal::kNone:
      return pass;
    case Gate::Refusal::kFull:
      Rejected(Rejection::kOverload);
      return Errorf(StatusCode::kResourceExhausted, "the {} already works on {} {} ({})",
                    context_->process, gate->limit(), things, limit);
    case Gate::Refusal::kShare:
      Rejected(Rejection::kShare);
      return Errorf(StatusCode::kResourceExhausted,
                    "this connection already has as many {} as the {} has places left for others, "
                    "of {} ({})",
                    things, context_->process, gate->limit(), limit);
    case Gate::Refusal::kClosed:
      break;
  }
  Rejected(Rejection::kDraining);
  return ShuttingDown(*context_);
}

Status Call::AdmitStream() {
  CAIRN_RETURN_IF_ERROR(ReadTrace());
  CAIRN_RETURN_IF_ERROR(Authorize());
  if (!context_->draining.load(std::memory_order_relaxed)) return OkStatus();
  Rejected(Rejection::kDraining);
  return ShuttingDown(*context_);
}

Status Call::Decode(const grpc::ByteBuffer& frame, google::protobuf::Message* request) {
  if (frame.Length() >= RequestBytes::kSmallFrame) {
    const FrameBounds& bounds = context_->bounds == nullptr ? NoBounds() : *context_->bounds;
    CAIRN_ASSIGN_OR_RETURN(const uint64_t bytes, bounds.Measure(frame, *request));
    CAIRN_RETURN_IF_ERROR(Hold(bytes));
  }
  return DecodeMeasured(frame, request);
}

Status Call::Hold(uint64_t bytes) {
  if (context_->request_bytes == nullptr) return OkStatus();
  auto share = context_->request_bytes->Take(bytes);
  if (!share.ok()) {
    Rejected(Rejection::kOverload);
    return share.status();
  }
  request_bytes_ = *std::move(share);
  return OkStatus();
}

grpc::Status Call::End(const Status& status) {
  ended_ = true;
  const double seconds = Seconds(context_->clock->Now() - begin_);
  method_->End(status.code(), seconds);
  EndSpan(status);
  // A client that left ends its session by cancelling: nothing to report.
  const bool left = method_->life() == Life::kOpenEnded && status.code() == StatusCode::kCancelled;
  const bool failed = !status.ok() && !left;
  const log::Level level = failed && !trace_.empty() ? log::Level::kInfo : log::Level::kDebug;
  if (log::Enabled(level)) {
    log::Write(level, failed ? "rpc_failed" : "rpc",
               {{"method", method_->name()},
                {"trace", trace_},
                {"seconds", log::Num(seconds)},
                {"status", status.ok() ? "OK" : ToString(status)},
                {"peer", PeerText(*grpc_)}});
  }
  return ToGrpc(status);
}

TimePoint Call::Deadline(Duration limit) const {
  const TimePoint latest = context_->clock->Now() + limit;
  const auto left = grpc_->deadline() - std::chrono::system_clock::now();
  // Without a deadline gRPC says the end of time, whose difference does not fit a Duration.
  if (left > std::chrono::hours(24)) return latest;
  return std::min(latest, context_->clock->Now() + std::chrono::duration_cast<Duration>(left));
}

bool Call::cancelled() const { return grpc_->IsCancelled(); }

Status Gone() { return Errorf(StatusCode::kCancelled, "the client went away"); }

Status ShuttingDown(const Context& context) {
  return Errorf(StatusCode::kUnavailable, "the {} is shutting down", context.process);
}

Status Decode(const grpc::ByteBuffer& frame, google::protobuf::Message* message) {
  if (frame.Length() >= RequestBytes::kSmallFrame) {
    CAIRN_RETURN_IF_ERROR(NoBounds().Measure(frame, *message).status());
  }
  return DecodeMeasured(frame, message);
}

}  // namespace cairn::rpc
