#pragma once
// What every call has in common: admission, trace id, metrics, log.

#include <google/protobuf/message.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "clients/cpp/wire/frames.h"
#include "clients/cpp/wire/status.h"
#include "services/cache/engine/cache_engine.h"
#include "services/cache/local/local_server.h"
#include "services/cache/rpc/call_reactor.h"
#include "services/cache/rpc/call_server.h"
#include "services/cache/rpc/rpc_metrics.h"
#include "services/cache/rpc/sessions.h"
#include "services/common/concurrency/executor.h"
#include "services/common/lifecycle/lifecycle.h"
#include "services/common/net/tls.h"

namespace cairn::cache {

struct RpcOptions {
  uint32_t max_in_flight = 1024;  // Calls under way, sessions and watches not counted.
  uint32_t max_watches = 64;
  uint32_t max_frame_bytes = 4u << 20;    // Of Push.
  uint32_t fetch_frame_bytes = 1u << 20;  // Data in one frame of Fetch.
  uint64_t send_bytes = 256ull << 20;     // Frames of all fetches that are on their way to readers.
  Duration heartbeat = std::chrono::seconds(5);
  Duration fetch_stall = std::chrono::seconds(30);  // A fetch that waits longer for one slice ends.
  // How long a reader may leave a frame where it is: when its lease is over; when others wait for room in the budget.
  Duration lease_grace = std::chrono::seconds(1);
  Duration patience = std::chrono::seconds(2);
  net::TlsOptions tls;
  std::vector<std::string> admin_identities;
};

// What the services share; all of it outlives them.
struct RpcContext {
  CacheEngine* engine = nullptr;
  const Clock* clock = nullptr;
  Executor* executor = nullptr;        // Calls that may take a while.
  Executor* fetch_executor = nullptr;  // Frames of fetches: they wait for disk.
  Executor* flush_executor = nullptr;  // Flush waits longest, and may not hold up the others.
  RpcMetrics* metrics = nullptr;
  Gate* gate = nullptr;  // Calls under way; closed when the node stops.
  Sessions* sessions = nullptr;
  // The same-node path; nullptr where there is none. Set once, after the first calls may have come.
  std::atomic<LocalServer*> local{nullptr};
  RpcOptions options;
  std::string node_id;
  uint64_t node_epoch = 0;
  std::atomic<bool> draining{false};
};

// One call, from arrival to status. Ends once.
class Call {
 public:
  // Counts the call. `grpc` outlives it.
  Call(RpcContext* rpc, Method method, const grpc::ServerContextBase* grpc);
  ~Call();  // Counts it as cancelled where nobody ended it.
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // INVALID_ARGUMENT for a malformed trace id; RESOURCE_EXHAUSTED over the limit; UNAVAILABLE when the node stops.
  Status Admit();
  // The same without a place among the calls under way: for streams that live as long as their client.
  Status AdmitStream();
  // Gives its place among the calls under way to another; else its destructor does.
  void Leave() { pass_ = Gate::Pass(); }
  // Counts, logs, and converts.
  grpc::Status End(const Status& status);

  const std::string& trace() const { return trace_; }
  RpcContext& rpc() const { return *rpc_; }
  Method method() const { return method_; }
  const grpc::ServerContextBase& grpc() const { return *grpc_; }
  // Where the client's deadline lies, at most `limit` from now.
  TimePoint Deadline(Duration limit) const;
  bool cancelled() const;

 private:
  Status ReadTrace();
  RpcContext* const rpc_;
  const Method method_;
  const grpc::ServerContextBase* const grpc_;
  const TimePoint begin_;
  std::string trace_;
  Gate::Pass pass_;
  bool ended_ = false;
};

// Of a call whose client cancelled it or is gone.
Status Gone();
// INVALID_ARGUMENT for what is no such message.
Status Decode(const grpc::ByteBuffer& frame, google::protobuf::Message* message);
// Such as "/cairn.v1.Cache/Match".
std::string Path(std::string_view service, Method method);

enum class Where { kInline, kExecutor, kFlushExecutor };

// A call with one request and one answer: admit, run the handler where it belongs, finish.
template <typename Request, typename Response>
class UnaryCall final : public CallReactor {
 public:
  using Handler = std::function<Status(Call& call, const Request& request, Response* response)>;

  // Owns itself. `handler` lives as long as the server.
  static void Start(RpcContext* rpc, Method method, Where where, const Handler* handler,
                    std::unique_ptr<RawCall> raw, const grpc::ByteBuffer& request) {
    auto* const call = new UnaryCall(rpc, method, handler, std::move(raw));
    if (const Status begun = call->Begin(request); !begun.ok()) return call->End(begun);
    if (where == Where::kInline) return call->Run();
    Executor* const executor = where == Where::kExecutor ? rpc->executor : rpc->flush_executor;
    if (const Status posted = executor->Post([call] { call->Run(); }); !posted.ok()) {
      rpc->metrics->Rejected(Rejection::kOverload);
      call->End(posted);
    }
  }

 private:
  UnaryCall(RpcContext* rpc, Method method, const Handler* handler, std::unique_ptr<RawCall> raw)
      : CallReactor(std::move(raw)), call_(rpc, method, &context()), handler_(handler) {}

  Status Begin(const grpc::ByteBuffer& request) {
    call_.rpc().metrics->Received(call_.method(), request.Length());
    CAIRN_RETURN_IF_ERROR(call_.Admit());
    return Decode(request, &request_);
  }
  void Run() {
    Response response;
    const Status status = call_.cancelled() ? Gone() : (*handler_)(call_, request_, &response);
    if (!status.ok()) return End(status);
    frame_ = wire::ToFrame(response);
    call_.rpc().metrics->Sent(call_.method(), frame_.Length());
    // A client that does not read its answer keeps no place.
    call_.Leave();
    StartWriteAndFinish(&frame_, call_.End(status));
  }
  void End(const Status& status) {
    call_.Leave();
    Finish(call_.End(status));
  }
  void OnDone() override { delete this; }

  Call call_;
  const Handler* const handler_;
  Request request_;
  grpc::ByteBuffer frame_;
};

// `rpc` outlives the server. The path is that of the service and the method's name.
template <typename Request, typename Response>
void AddUnary(CallServer* server, std::string_view service, RpcContext* rpc, Method method,
              Where where, typename UnaryCall<Request, Response>::Handler handler) {
  server->Add(
      Path(service, method), [=, handler = std::move(handler)](std::unique_ptr<RawCall> call,
                                                               const grpc::ByteBuffer& request) {
        UnaryCall<Request, Response>::Start(rpc, method, where, &handler, std::move(call), request);
      });
}

}  // namespace cairn::cache
