#pragma once
// What every call has in common: admission, trace id, metrics, log.

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "clients/cpp/wire/status.h"
#include "services/cache/engine/cache_engine.h"
#include "services/cache/local/local_server.h"
#include "services/cache/rpc/rpc_metrics.h"
#include "services/cache/rpc/sessions.h"
#include "services/common/concurrency/executor.h"
#include "services/common/lifecycle/lifecycle.h"
#include "services/common/net/tls.h"

namespace cairn::cache {

struct RpcOptions {
  uint32_t max_in_flight = 1024;   // Calls under way, sessions and watches not counted.
  uint32_t max_watches = 64;
  uint32_t max_frame_bytes = 4u << 20;   // Of Push.
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
  Gate* gate = nullptr;                // Calls under way; closed when the node stops.
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
  // Counts, logs, and converts.
  grpc::Status End(const Status& status);

  const std::string& trace() const { return trace_; }
  RpcContext& rpc() const { return *rpc_; }
  Method method() const { return method_; }
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

enum class Where { kInline, kExecutor, kFlushExecutor };

// A unary call: admit, run `handler` (Status(Call&)) where it belongs, finish. Messages live until the call is finished.
template <typename Request, typename Response, typename Handler>
grpc::ServerUnaryReactor* Unary(RpcContext* rpc, Method method, grpc::CallbackServerContext* context,
                                const Request* request, Response* response, Where where, Handler handler) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  auto call = std::make_shared<Call>(rpc, method, context);
  rpc->metrics->Received(method, request->ByteSizeLong());
  if (const Status admitted = call->Admit(); !admitted.ok()) {
    reactor->Finish(call->End(admitted));
    return reactor;
  }
  auto run = [call, reactor, response, handler = std::move(handler)] {
    Status status = call->cancelled() ? Errorf(StatusCode::kCancelled, "the client went away") : handler(*call);
    call->rpc().metrics->Sent(call->method(), response->ByteSizeLong());
    reactor->Finish(call->End(status));
  };
  if (where == Where::kInline) {
    run();
    return reactor;
  }
  Executor* executor = where == Where::kExecutor ? rpc->executor : rpc->flush_executor;
  if (const Status posted = executor->Post(run); !posted.ok()) {
    rpc->metrics->Rejected(Rejection::kOverload);
    reactor->Finish(call->End(posted));
  }
  return reactor;
}

}  // namespace cairn::cache
