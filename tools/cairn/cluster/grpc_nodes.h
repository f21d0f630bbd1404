#pragma once
// ClusterNodes over gRPC.

#include <memory>

#include "tools/cairn/cluster/nodes.h"
#include "tools/cairn/options.h"

namespace cairn::cli {

// Thread-safe. `timeout`: of each call.
std::unique_ptr<ClusterNodes> NewClusterNodes(const TlsFlags& tls, Duration timeout);

}  // namespace cairn::cli
