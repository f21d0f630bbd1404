#pragma once
// The publisher of the node's events as the settings ask for it, and its metrics.

#include <memory>
#include <string>

#include "common/metrics/metrics.h"
#include "services/cache/serve/events/zmq/zmq_publisher.h"
#include "services/cache/serve/node/node_config.h"

namespace cairn::cache {

// nullptr: the settings ask for none. `engine` and `clock` outlive it. Errors name the setting.
Result<std::unique_ptr<ZmqPublisher>> StartEvents(const NodeConfig& config,
                                                  const std::string& node_id, CacheEngine* engine,
                                                  const Clock* clock);

// `publisher` outlives the registry's last scrape.
void ExportEvents(const ZmqPublisher* publisher, metrics::Registry* registry);

}  // namespace cairn::cache
