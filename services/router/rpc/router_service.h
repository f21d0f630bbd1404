#pragma once
// The Router service of proto/cairn/v1/router.proto over a RouterEngine: decode, call, encode.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cairn/v1/router.pb.h"
#include "common/concurrency/executor.h"
#include "common/memory/fair_budget.h"
#include "common/rpc/call.h"
#include "common/rpc/call_server.h"
#include "common/rpc/context.h"
#include "common/rpc/stream_set.h"
#include "services/router/engine/router_engine.h"

namespace cairn::router {

inline constexpr char kRouterService[] = "cairn.v1.Router";

class GenerateStream;

// Thread-safe. A Generate holds no thread while its worker computes.
class RouterService {
 public:
  // The parts that Generate and GetInfo are made from. All must outlive the service.
  struct Parts {
    RouterEngine* engine = nullptr;
    const WorkerRegistry* registry = nullptr;
    const Dispatcher* dispatcher = nullptr;
    const PrefixIndex* index = nullptr;
    const Clock* clock = nullptr;
    std::shared_ptr<FairBudget> answers = {};  // nullptr: no bound.
    std::string tenant = "default";            // The tenant of requests that name none.
  };

  explicit RouterService(const Parts& parts) : parts_(parts) {}
  // Before the server starts. The service, `context` and `executor`, on which GetInfo runs, must
  // outlive the server.
  void AddTo(rpc::CallServer* server, const rpc::Context* context, Executor* executor);
  // Cancels what is under way.
  void EndStreams();

 private:
  friend class GenerateStream;
  // PERMISSION_DENIED: the policy does not let the caller use the request's tenant, or the
  // configured one. Pick needs it, too: its answer says where a prefix lies.
  Status CheckTenant(const rpc::Call& call, const GenerateRequest& request) const;
  void PickWorker(const rpc::Call& call, const v1::GenerateRequest& request,
                  std::function<void(const Status&, const v1::PickResponse&)> done);
  Status GetInfo(v1::RouterInfo* response);

  const Parts parts_;
  rpc::StreamSet<GenerateStream> streams_;
};

}  // namespace cairn::router
