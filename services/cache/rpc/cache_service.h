#pragma once
// cairn.v1.Cache over a CacheEngine: decode, call, encode.

#include <memory>

#include "services/cache/rpc/call.h"
#include "services/cache/rpc/namespaces.h"

namespace grpc {
class Service;
}

namespace cairn::cache {

// Thread-safe.
class CacheService {
 public:
  virtual ~CacheService() = default;
  // `rpc` and `registry` outlive the service.
  static std::unique_ptr<CacheService> Create(RpcContext* rpc, metrics::Registry* registry);

  // To be registered with a server, which ends before this object.
  virtual grpc::Service* grpc() = 0;
  // Heartbeats and events; every 100 ms or so.
  virtual void Tick() = 0;
  // Tells every session that the node drains.
  virtual void AnnounceDrain() = 0;
  // Ends sessions and watches with UNAVAILABLE.
  virtual void EndStreams() = 0;
};

}  // namespace cairn::cache
