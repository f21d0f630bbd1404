#pragma once
// cairn.v1.Cache over a CacheEngine: decode, call, encode.

#include <memory>
#include <string>
#include <vector>

#include "common/rpc/call_server.h"
#include "services/cache/serve/rpc/rpc_context.h"

namespace cairn::cache {

// The full names of the services that a node has: what health checks may ask for.
std::vector<std::string> ServiceNames();

// Thread-safe.
class CacheService {
 public:
  virtual ~CacheService() = default;
  // `rpc` and `registry` outlive the service.
  static std::unique_ptr<CacheService> Create(RpcContext* rpc, metrics::Registry* registry);

  // Before the server starts, which ends before this object.
  virtual void AddTo(rpc::CallServer* server) = 0;
  // Heartbeats and events; every 100 ms or so.
  virtual void Tick() = 0;
  // Tells every session that the node drains.
  virtual void AnnounceDrain() = 0;
  // Ends sessions and watches with UNAVAILABLE.
  virtual void EndStreams() = 0;
};

}  // namespace cairn::cache
