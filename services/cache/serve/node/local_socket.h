#pragma once
// Where the same-node path listens.

#include <memory>

#include "services/cache/serve/local/local_server.h"
#include "services/cache/serve/node/node_config.h"

namespace cairn::cache {

// `port`: of the data port, which names the socket where the settings say auto. REQUIRES:
// local.socket is not off.
Result<std::unique_ptr<LocalServer>> StartLocalServer(const NodeConfig& config, int port,
                                                      const LocalServer::Dependencies& dependencies,
                                                      uint64_t node_epoch);

}  // namespace cairn::cache
