#pragma once
// Settings of a node that belongs to a cluster.

#include <string>
#include <vector>

#include "common/config/config.h"
#include "services/cache/serve/node/node_config.h"

namespace cairn::cache {

// Registers the fields of `config->cluster` and their checks.
void RegisterCluster(NodeConfig* config, config::Schema* schema);

}  // namespace cairn::cache
