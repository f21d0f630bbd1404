#include "services/cache/serve/node/events_config.h"

#include "services/cache/serve/events/namespace_form.h"

namespace cairn::cache {
namespace {

constexpr std::string_view kTcp = "tcp://", kIpc = "ipc://";

Status CheckEvents(const EventsConfig& config) {
  CAIRN_RETURN_IF_ERROR(CheckTopic(config.topic, "events.topic"));
  if (config.tenant.empty()) {
    return InvalidArgument("events.tenant: got '', expected the name of a tenant");
  }
  if (config.enabled() || config.zmq_replay.empty()) return OkStatus();
  return InvalidArgument("events.zmq_replay: got '{}', expected none without events.zmq",
                         config.zmq_replay);
}

}  // namespace

Result<net::ListenAddress> ParseEventsEndpoint(const std::string& text,
                                               const std::string& setting) {
  const auto bad = [&] {
    return InvalidArgument(
        "{}: got '{}', expected tcp://HOST:PORT or ipc:///PATH, such as tcp://127.0.0.1:5557",
        setting, text);
  };
  const bool ipc = text.starts_with(kIpc);
  if (!ipc && !text.starts_with(kTcp)) return bad();
  const std::string rest = text.substr(kTcp.size());
  auto address = net::ParseListenAddress(ipc ? "unix:" + rest : rest, setting);
  if (!address.ok() || address->is_unix != ipc) return bad();
  // Nobody would be told a port that the system chose.
  if (!ipc && address->port == 0) return bad();
  if (address->host == "*") address->host = "0.0.0.0";
  return *std::move(address);
}

std::string BindEndpoint(const net::ListenAddress& address) {
  if (address.is_unix) return std::string(kIpc) + address.host;
  net::ListenAddress numeric = address;
  if (numeric.host == "localhost") numeric.host = "127.0.0.1";
  return std::string(kTcp) + numeric.WithPort(numeric.port);
}

Status AppendEventsAddresses(const EventsConfig& config, std::vector<net::NamedAddress>* all) {
  for (const auto& [setting, endpoint] :
       {std::pair("events.zmq", &config.zmq), std::pair("events.zmq_replay", &config.zmq_replay)}) {
    if (endpoint->empty()) continue;
    CAIRN_ASSIGN_OR_RETURN(net::ListenAddress address, ParseEventsEndpoint(*endpoint, setting));
    if (!net::IsLocal(address) && !config.trusted_network) {
      return Errorf(StatusCode::kPermissionDenied,
                    "{}: '{}' can be reached from other machines, and everybody there can read "
                    "it. Publish on 127.0.0.1 or a Unix socket, or set events.trusted_network",
                    setting, *endpoint);
    }
    // A router listens there.
    const bool there = config.connect && endpoint == &config.zmq;
    if (there && (address.host == "0.0.0.0" || address.host == "::")) {
      return InvalidArgument("{}: got '{}', expected the router's machine with events.connect",
                             setting, *endpoint);
    }
    if (!there) all->push_back({setting, std::move(address)});
  }
  return OkStatus();
}

void RegisterEvents(NodeConfig* config, config::Schema* s) {
  EventsConfig* const c = &config->events;
  s->Text("events.zmq", &c->zmq,
          "Where the node publishes which blocks it holds, over ZeroMQ in the form of vLLM's KV "
          "events, for routers: tcp://IP:PORT or ipc:///PATH. Empty: nowhere.",
          {.max_length = 255});
  s->Bool("events.connect", &c->connect,
          "A router listens at events.zmq: connect to it. It gets all blocks again whenever it "
          "subscribes.");
  s->Text("events.zmq_replay", &c->zmq_replay,
          "Where routers ask for batches that they missed, as vLLM's replay_endpoint. Empty: "
          "nowhere.",
          {.max_length = 255});
  s->Text("events.topic", &c->topic,
          "The topic of batches. {node}, {host} and {model} stand for node.id, cluster.host and "
          "the model of the blocks.",
          {.max_length = 255});
  s->Text("events.tenant", &c->tenant, "The tenant whose blocks are published, and nobody else's.",
          {.max_length = 128});
  s->Text("events.encoding", &c->encoding,
          "How events are written. maps: as vLLM and SGLang do now. arrays: as they did before.",
          {.choices = {"maps", "arrays"}});
  s->Text("events.hashes", &c->hashes,
          "How vLLM's hashes are written. integers: as vLLM does. bytes: as it does with "
          "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0.",
          {.choices = {"integers", "bytes"}});
  s->Bytes("events.memory", &c->memory,
           "Memory for batches: one half for those that are kept for replays, one half for those "
           "that wait for a router that reads slowly.",
           {.min = 1 << 20, .max = 1ull << 34});
  s->Bool("events.trusted_network", &c->trusted_network,
          "Events may be published where other machines can read them, without encryption.");
  s->Check([c] { return CheckEvents(*c); });
}

}  // namespace cairn::cache
