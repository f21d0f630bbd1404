#pragma once
// Settings of a node that moves blocks between GPUs of members.

#include "common/config/config.h"
#include "services/cache/serve/node/node_config.h"

namespace cairn::cache {

// Registers the fields of `config->link` and their checks.
void RegisterLinks(NodeConfig* config, config::Schema* schema);

}  // namespace cairn::cache
