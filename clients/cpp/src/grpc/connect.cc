// Makes clients over gRPC, with the system's clock.

#include "cairn/client/connect.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <functional>
#include <utility>
#include <vector>

#include "clients/cpp/src/core/home_client.h"
#include "clients/cpp/src/core/node_list.h"
#include "clients/cpp/src/core/transport_client.h"
#include "clients/cpp/src/grpc/channel.h"
#include "clients/cpp/src/grpc/grpc_admin_client.h"
#include "clients/cpp/src/grpc/grpc_transport.h"
#include "clients/cpp/src/grpc/look_up.h"
#include "clients/cpp/src/local/local_transport.h"
#include "common/net/address.h"
#include "common/net/operator_path.h"

namespace cairn::client {
namespace {

// Two cores gain up to here; each costs the node some KiB once it has been used.
constexpr size_t kDataConnections = 4;
constexpr size_t kMaxName = 128;  // Characters of client_name, host, zone, home_key.
constexpr Duration kLookUpInterval = std::chrono::seconds(30);

// The socket for operators of a node on this machine, if this user may use it; "" otherwise.
std::string OperatorSocketOf(const std::string& address) {
  const auto parsed = net::ParseListenAddress(address, "address");
  if (!parsed.ok() || parsed->is_unix || !net::IsLocal(*parsed)) return "";
  const auto folder = net::RuntimeFolder("address", /*make=*/false);
  if (!folder.ok()) return "";
  const std::string path = net::OperatorSocketIn(*folder, parsed->port);
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  if (path.size() >= sizeof to.sun_path) return "";
  path.copy(to.sun_path, path.size());
  // A node that was killed leaves the file behind.
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  const bool there = connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
  close(fd);
  return there ? path : "";
}

}  // namespace

Result<PathChoice> ParsePathChoice(std::string_view text, std::string_view field) {
  if (text == "auto") return PathChoice::kAuto;
  if (text == "grpc") return PathChoice::kGrpc;
  if (text == "local") return PathChoice::kLocal;
  return InvalidArgument("field '{}': got '{}', expected auto, grpc or local", field, text);
}

namespace {

Status CheckNames(const ConnectOptions& options) {
  for (const auto& [field, text] :
       {std::pair("client_name", &options.client_name), std::pair("host", &options.host),
        std::pair("zone", &options.zone), std::pair("home_key", &options.home_key)}) {
    if (text->size() <= kMaxName) continue;
    return InvalidArgument("field '{}': got {} characters, expected 0 to {}", field, text->size(),
                           kMaxName);
  }
  return OkStatus();
}

// `options.address` is one address.
Result<std::unique_ptr<NodeClient>> ConnectToNode(const ConnectOptions& options,
                                                  std::vector<KnownNamespace> namespaces) {
  GrpcTransport::Channels channels;
  CAIRN_ASSIGN_OR_RETURN(channels.control, NewChannel(options));
  CAIRN_ASSIGN_OR_RETURN(channels.events, NewChannel(options));
  channels.data.resize(kDataConnections);
  for (auto& channel : channels.data) {
    CAIRN_ASSIGN_OR_RETURN(channel, NewChannel(options));
  }
  const Clock* const clock = &SteadyClock::Get();
  auto main = std::make_unique<GrpcTransport>(
      std::move(channels),
      GrpcSessionLink::Client{.name = options.client_name, .tenant = options.tenant}, clock);
  std::unique_ptr<NearTransport> near;
  if (options.path != PathChoice::kGrpc) {
    near = std::make_unique<local::LocalTransport>(
        local::LocalPath::Options{.client = options.client_name,
                                  .tenant = options.tenant,
                                  .spin = options.spin.value_or(Duration(-1)),
                                  .devices = options.devices},
        clock);
  }
  // Clients that were started together must not come back together.
  const uint64_t seed = std::hash<const void*>()(main.get()) ^
                        static_cast<uint64_t>(clock->Now().time_since_epoch().count());
  return std::make_unique<TransportClient>(
      TransportClient::Options{.breaker = options.breaker,
                               .max_reconnect_backoff = options.max_reconnect_backoff,
                               .seed = seed,
                               .near_only = options.path == PathChoice::kLocal,
                               .names_tenant = !options.tenant.empty(),
                               .session_thread = true,
                               .address = options.address,
                               .namespaces = std::move(namespaces)},
      clock, std::move(near), std::move(main));
}

}  // namespace

Result<std::unique_ptr<CacheClient>> Connect(const ConnectOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckNames(options));
  CAIRN_ASSIGN_OR_RETURN(const NodeList nodes, ParseNodeList(options.address));
  if (!nodes.several()) {
    ConnectOptions one = options;
    one.address = nodes.addresses.front();
    return ConnectToNode(one, {});
  }
  const auto connect = [options](const NodeAddress& node, std::vector<KnownNamespace> namespaces) {
    ConnectOptions one = options;
    one.address = node.address;
    // The certificate has the name that people wrote, not the address behind it.
    if (one.tls.server_name.empty()) one.tls.server_name = node.name;
    return ConnectToNode(one, std::move(namespaces));
  };
  // Settings that cannot work with any address are refused now. This connects to nothing.
  ConnectOptions any = options;
  any.address = nodes.addresses.empty() ? "localhost:1" : nodes.addresses.front();
  CAIRN_RETURN_IF_ERROR(NewChannel(any).status());
  return std::make_unique<HomeClient>(
      HomeClient::Options{
          .choice = {.key = options.home_key.empty() ? options.client_name : options.home_key,
                     .host = options.host,
                     .zone = options.zone},
          .look_up_interval = nodes.names.empty() ? Duration(0) : kLookUpInterval,
          .has_thread = true},
      &SteadyClock::Get(), [nodes] { return LookUpNodes(nodes); }, connect);
}

Result<std::unique_ptr<AdminClient>> ConnectAdmin(const ConnectOptions& options) {
  ConnectOptions chosen = options;
  if (std::string socket = OperatorSocketOf(options.address); !socket.empty()) {
    chosen.address = "unix:" + socket;
    chosen.tls = {};
  }
  CAIRN_ASSIGN_OR_RETURN(auto channel, NewChannel(chosen));
  return NewGrpcAdminClient(std::move(channel), &SteadyClock::Get());
}

bool HasOperatorSocket(const std::string& address) { return !OperatorSocketOf(address).empty(); }

}  // namespace cairn::client
