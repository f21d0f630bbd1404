#pragma once
// cairn.v1.Admin over a CacheEngine, for callers of the admin role.

#include <memory>

#include "services/cache/rpc/call.h"

namespace grpc {
class Service;
}

namespace cairn::cache {

// `rpc` outlives the service.
std::unique_ptr<grpc::Service> MakeAdminService(RpcContext* rpc);

}  // namespace cairn::cache
