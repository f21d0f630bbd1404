#pragma once
// Where an engine publishes its KV events: the setting engines.events.

#include <span>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "services/router/registry/named_worker.h"

namespace cairn::router {

struct EventSource {
  std::string worker = {};    // URL of the engine, or a name of engines, as in `workers`.
  std::string endpoint = {};  // The address of its PUB socket, as ZeroMQ connects to it.
  std::string replay = {};    // The address of its ROUTER socket for replays. Empty: it has none.

  friend bool operator==(const EventSource&, const EventSource&) = default;
};

// From "URL=ENDPOINT" or "URL=ENDPOINT,REPLAY". Endpoints are tcp://HOST:PORT or ipc://PATH. For a
// name of engines ("dns:http://NAME:PORT") they are tcp://{host}:PORT, where {host} stands for the
// host of each engine. INVALID_ARGUMENT names the setting.
Result<EventSource> ParseEventSource(const std::string& text);

// All of them. A command line cuts lists at commas, so an endpoint alone is the REPLAY of the one
// before it. INVALID_ARGUMENT also if one names an engine that is not among `workers`, or an engine
// or an endpoint that another one names.
Result<std::vector<EventSource>> ParseEventSources(const std::vector<std::string>& texts,
                                                   const std::vector<std::string>& workers);

// Where the engines publish that there are now: `sources`, and those that have a name of engines
// once for each of `workers` with that name, the first `most_named` of them.
std::vector<EventSource> SourcesOf(std::span<const EventSource> sources,
                                   std::span<const NamedWorker> workers, size_t most_named);

}  // namespace cairn::router
