#include "services/router/events/event_source.h"

#include <algorithm>
#include <set>

#include "common/net/address.h"

namespace cairn::router {
namespace {

constexpr char kField[] = "engines.events";
constexpr std::string_view kTcp = "tcp://", kIpc = "ipc://";
constexpr std::string_view kHost = "{host}";

Status CheckEndpoint(const std::string& endpoint) {
  const auto bad = [&](std::string_view why) {
    return InvalidArgument(
        "{}: got the endpoint '{}', expected tcp://HOST:PORT or ipc:///PATH to connect to{}",
        kField, endpoint, why);
  };
  if (endpoint.find(kHost) != std::string::npos) {
    return bad(": {host} stands for the engines of a name, dns:http://NAME:PORT");
  }
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

// The address with the host in its place. Hosts with colons get brackets.
std::string WithHost(std::string endpoint, const std::string& host) {
  const size_t at = endpoint.find(kHost);
  if (at == std::string::npos) return endpoint;
  const bool v6 = host.find(':') != std::string::npos;
  return endpoint.replace(at, kHost.size(), v6 ? "[" + host + "]" : host);
}

Status CheckNamedEndpoint(const std::string& endpoint) {
  const std::string begin = fmt::format("{}{}:", kTcp, kHost);
  if (endpoint.starts_with(begin) && CheckEndpoint(WithHost(endpoint, "a")).ok()) return OkStatus();
  return InvalidArgument(
      "{}: got the endpoint '{}' of a name of engines, expected tcp://{{host}}:PORT, where "
      "{{host}} stands for each of them",
      kField, endpoint);
}

Status CheckEndpointOf(const std::string& worker, const std::string& endpoint) {
  return IsWorkerName(worker) ? CheckNamedEndpoint(endpoint) : CheckEndpoint(endpoint);
}

// The host of http://HOST:PORT.
std::string HostOf(const std::string& url) {
  const size_t begin = url.find("://");
  const auto address =
      net::ParseListenAddress(begin == std::string::npos ? url : url.substr(begin + 3), kField);
  return address.ok() && !address->is_unix ? address->host : "";
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
    CAIRN_RETURN_IF_ERROR(CheckEndpointOf(source.worker, source.replay));
  }
  CAIRN_RETURN_IF_ERROR(CheckEndpointOf(source.worker, source.endpoint));
  return source;
}

Result<std::vector<EventSource>> ParseEventSources(const std::vector<std::string>& texts,
                                                   const std::vector<std::string>& workers) {
  std::vector<EventSource> sources;
  std::set<std::string> engines, endpoints;
  for (const std::string& text : texts) {
    const bool is_replay = text.starts_with(kTcp) || text.starts_with(kIpc);
    if (is_replay && !sources.empty() && sources.back().replay.empty()) {
      CAIRN_RETURN_IF_ERROR(CheckEndpointOf(sources.back().worker, text));
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
      // Two names may have the same ports.
      const bool is_own = endpoint->find(kHost) == std::string::npos;
      if (endpoint->empty() || !is_own || endpoints.insert(*endpoint).second) continue;
      return Twice(*endpoint);
    }
    sources.push_back(std::move(source));
  }
  return sources;
}

std::vector<EventSource> SourcesOf(std::span<const EventSource> sources,
                                   std::span<const NamedWorker> workers, size_t most_named) {
  std::vector<EventSource> all;
  size_t named = 0;
  for (const EventSource& source : sources) {
    if (!IsWorkerName(source.worker)) {
      all.push_back(source);
      continue;
    }
    for (const NamedWorker& worker : workers) {
      if (worker.setting != source.worker || named == most_named) continue;
      const std::string host = HostOf(worker.address);
      if (host.empty()) continue;
      all.push_back({.worker = worker.address,
                     .endpoint = WithHost(source.endpoint, host),
                     .replay = WithHost(source.replay, host)});
      ++named;
    }
  }
  return all;
}

}  // namespace cairn::router
