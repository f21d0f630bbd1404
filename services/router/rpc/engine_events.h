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
  uint32_t named = 32;  // Engines with names.

  // Most engines whose events are followed at a time.
  uint64_t engines() const;
};

// Registers engines.event*. `config` must outlive `schema`.
void Register(config::Schema& schema, EngineEventsConfig& config);

// cairn_router_engine_*: sums over all engines, also over those that have left.
void ExportEngineEvents(const ZmqFollower& follower, metrics::Sink& sink);

}  // namespace cairn::router
