#pragma once
// Where an engine publishes its KV events: the setting engines.events.

#include <string>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::router {

struct EventSource {
  std::string worker = {};    // URL of the engine, as in the setting `workers`.
  std::string endpoint = {};  // The address of its PUB socket, as ZeroMQ connects to it.
  std::string replay = {};    // The address of its ROUTER socket for replays. Empty: it has none.
};

// From "URL=ENDPOINT" or "URL=ENDPOINT,REPLAY". Endpoints are tcp://HOST:PORT or ipc://PATH.
// INVALID_ARGUMENT names the setting.
Result<EventSource> ParseEventSource(const std::string& text);

// All of them. A command line cuts lists at commas, so an endpoint alone is the REPLAY of the one
// before it. INVALID_ARGUMENT also if one names an engine that is not among `workers`, or an engine
// or an endpoint that another one names.
Result<std::vector<EventSource>> ParseEventSources(const std::vector<std::string>& texts,
                                                   const std::vector<std::string>& workers);

}  // namespace cairn::router
