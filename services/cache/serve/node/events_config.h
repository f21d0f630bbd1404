#pragma once
// The settings of the events that a node publishes for routers.

#include <string>
#include <vector>

#include "common/net/address.h"
#include "services/cache/serve/node/node_config.h"

namespace cairn::cache {

// Registers events.* and their checks. `config` outlives the schema.
void RegisterEvents(NodeConfig* config, config::Schema* schema);

// "tcp://HOST:PORT" or "ipc:///PATH". INVALID_ARGUMENT, which names `setting`.
Result<net::ListenAddress> ParseEventsEndpoint(const std::string& text, const std::string& setting);
// As ZeroMQ binds it: numbers, and no names.
std::string BindEndpoint(const net::ListenAddress& address);

// Adds where events are published, if they are. PERMISSION_DENIED: other machines can reach that,
// and no setting says that they may.
Status AppendEventsAddresses(const EventsConfig& config, std::vector<net::NamedAddress>* all);

}  // namespace cairn::cache
