#include "services/router/events/event_source.h"

#include <algorithm>
#include <set>

#include "common/net/address.h"

namespace cairn::router {
namespace {

constexpr char kField[] = "engines.events";
constexpr std::string_view kTcp = "tcp://", kIpc = "ipc://";

Status CheckEndpoint(const std::string& endpoint) {
  const auto bad = [&](std::string_view why) {
    return InvalidArgument(
        "{}: got the endpoint '{}', expected tcp://HOST:PORT or ipc:///PATH to connect to{}",
        kField, endpoint, why);
  };
  if (endpoint.starts_with(kIpc)) {
    const auto address = net::ParseListenAddress("unix:" + endpoint.substr(kIpc.size()), kField);
    return address.ok() ? OkStatus() : bad("");
  }
  if (!endpoint.starts_with(kTcp)) return bad("");
  const auto address = net::ParseListenAddress(endpoint.substr(kTcp.size()), kField);
  if (!address.ok() || address->is_unix || address->port == 0) return bad("");
  if (address->host == "*" || address->host == "0.0.0.0" || address->host == "::") {
    return bad(": that is where an engine listens, name the engine's machine");
  }
  return OkStatus();
}

Status Twice(const std::string& endpoint) {
  return InvalidArgument("{}: got the endpoint '{}' twice, expected each endpoint once", kField,
                         endpoint);
}

}  // namespace

Result<EventSource> ParseEventSource(const std::string& text) {
  // A URL may have a '=' itself, endpoints begin with their scheme.
  const size_t equals = std::min(text.find("=tcp://"), text.find("=ipc://"));
  if (equals == std::string::npos || equals == 0) {
    return InvalidArgument("{}: got '{}', expected URL=ENDPOINT or URL=ENDPOINT,REPLAY", kField,
                           text);
  }
  EventSource source;
  source.worker = text.substr(0, equals);
  source.endpoint = text.substr(equals + 1);
  const size_t comma = source.endpoint.find(',');
  if (comma != std::string::npos) {
    source.replay = source.endpoint.substr(comma + 1);
    source.endpoint.resize(comma);
    CAIRN_RETURN_IF_ERROR(CheckEndpoint(source.replay));
  }
  CAIRN_RETURN_IF_ERROR(CheckEndpoint(source.endpoint));
  return source;
}

Result<std::vector<EventSource>> ParseEventSources(const std::vector<std::string>& texts,
                                                   const std::vector<std::string>& workers) {
  std::vector<EventSource> sources;
  std::set<std::string> engines, endpoints;
  for (const std::string& text : texts) {
    const bool is_replay = text.starts_with(kTcp) || text.starts_with(kIpc);
    if (is_replay && !sources.empty() && sources.back().replay.empty()) {
      CAIRN_RETURN_IF_ERROR(CheckEndpoint(text));
      sources.back().replay = text;
      if (endpoints.insert(text).second) continue;
      return Twice(text);
    }
    CAIRN_ASSIGN_OR_RETURN(EventSource source, ParseEventSource(text));
    if (std::ranges::find(workers, source.worker) == workers.end()) {
      return InvalidArgument("{}: got the engine '{}', expected one of those in workers", kField,
                             source.worker);
    }
    if (!engines.insert(source.worker).second) {
      return InvalidArgument("{}: got the engine '{}' twice, expected each engine once", kField,
                             source.worker);
    }
    for (const std::string* endpoint : {&source.endpoint, &source.replay}) {
      if (endpoint->empty() || endpoints.insert(*endpoint).second) continue;
      return Twice(*endpoint);
    }
    sources.push_back(std::move(source));
  }
  return sources;
}

}  // namespace cairn::router
