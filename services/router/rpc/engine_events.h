#pragma once
// The settings and the metrics of following engines' KV events.

#include <cstdint>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/metrics/metrics.h"
#include "services/router/events/zmq/zmq_follower.h"

namespace cairn::router {

struct EngineEventsConfig {
  std::vector<std::string> events;
  uint32_t blocks = 262'144;
};

// Registers engines.events and engines.event_blocks. `config` must outlive `schema`.
void Register(config::Schema& schema, EngineEventsConfig& config);

// cairn_router_engine_*: sums over all engines.
void ExportEngineEvents(const std::vector<ZmqFollower::Engine>& engines, metrics::Sink& sink);

}  // namespace cairn::router
