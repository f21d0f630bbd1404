#pragma once
// The parts that every call has: admission, trace id, metrics, log.

#include <google/protobuf/message.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/lifecycle/lifecycle.h"
#include "common/rpc/context.h"

namespace cairn::rpc {

// One call, from arrival to status. Ends once. It belongs to the code that drives the call: one
// thread at a time.
class Call {
 public:
  // Counts the call. `grpc` must outlive it, as must what `context` and `method` point to.
  Call(const Context* context, Method* method, const grpc::ServerContextBase* grpc);
  ~Call();  // Counts it as cancelled if nobody ended it.
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // INVALID_ARGUMENT: the trace id is malformed. UNAUTHENTICATED, PERMISSION_DENIED: the policy
  // does not let the caller call the method, for any tenant. RESOURCE_EXHAUSTED: too many calls, of
  // all clients or of this connection. UNAVAILABLE: the process stops.
  Status Admit();
  // The same without a place among the calls under way: for streams that live as long as their
  // client, and for those that have not begun.
  Status AdmitStream();
  // A place among the calls under way, after AdmitStream. Errors as Admit.
  Status TakePlace();
  // A place at another gate. RESOURCE_EXHAUSTED: the gate, or this connection's share of it, is
  // full of `things`, such as "watches", which `limit` bounds.
  Result<Gate::Pass> TakePlaceAt(Gate* gate, std::string_view things, std::string_view limit) const;
  // Decodes the request that the call holds from now on. The memory that its frame announces is
  // counted and refused first. INVALID_ARGUMENT: it is no such message, or has too many elements of
  // a field. RESOURCE_EXHAUSTED: calls under way hold too much.
  Status Decode(const grpc::ByteBuffer& frame, google::protobuf::Message* request);
  // Gives its place among the running calls to another call. Otherwise the destructor does so.
  void Leave() { pass_ = Gate::Pass(); }
  // Counts, logs, and converts.
  grpc::Status End(const Status& status);

  // The caller with its rights, after Admit. nullptr: the server has no policy.
  const std::shared_ptr<const auth::KnownCaller>& caller() const { return caller_; }
  // Whether the policy lets the caller do what asks for this role, for this tenant. True where
  // there is no policy. A refusal is counted and logged.
  bool Allows(auth::Role role, std::string_view tenant) const;
  // The same, for all tenants, also those that nobody has named yet.
  bool AllowsAll(auth::Role role) const;
  // The same as Allows, as a status: PERMISSION_DENIED, which names the tenant.
  Status CheckAllowed(auth::Role role, std::string_view tenant) const;

  // The caller's trace id. Where spans are wanted, the place of this call below the caller's: calls
  // that are made for this one get it.
  const std::string& trace() const { return trace_; }
  // A span below this call's, of a part of its work. No effect where no spans are wanted.
  void AddSpan(std::string_view name, TimePoint begin, TimePoint end,
               tracing::Attributes attributes = {}) const;
  const Method& method() const { return *method_; }
  const grpc::ServerContextBase& grpc() const { return *grpc_; }
  // The connection that the call came over, as gRPC tells it. One name for all Unix sockets.
  std::string connection() const { return grpc_->peer(); }
  // Where the client's deadline lies, at most `limit` from now.
  TimePoint Deadline(Duration limit) const;
  bool cancelled() const;
  void Received(const grpc::ByteBuffer& frame) const { method_->Received(frame.Length()); }
  void Sent(const grpc::ByteBuffer& frame) const { method_->Sent(frame.Length()); }
  void Rejected(Rejection reason) const { context_->metrics->Rejected(reason); }

 private:
  Status ReadTrace();
  Status Authorize();
  std::shared_ptr<const auth::KnownCaller> FindCaller() const;
  void LogRefusal(std::string_view role, std::string_view tenant) const;
  void BeginSpan();
  void EndSpan(const Status& status);
  Status Hold(uint64_t bytes);
  const Context* const context_;
  Method* const method_;
  const grpc::ServerContextBase* const grpc_;
  const TimePoint begin_;
  std::string trace_;
  std::shared_ptr<const auth::KnownCaller> caller_;
  std::optional<tracing::Place> place_;  // nullopt: no span is wanted.
  Gate::Pass pass_;
  RequestBytes::Share request_bytes_;
  bool ended_ = false;
};

// The status of a call that its client cancelled, or whose client is gone.
Status Gone();
// UNAVAILABLE: of calls that come, and streams that are open, while the process stops.
Status ShuttingDown(const Context& context);
// For messages whose fields have no bounds. INVALID_ARGUMENT for what is no such message.
Status Decode(const grpc::ByteBuffer& frame, google::protobuf::Message* message);

}  // namespace cairn::rpc
