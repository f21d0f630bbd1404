#pragma once
// Clients over gRPC. Link Cairn::client; in the tree, cairn_client_grpc.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cairn/client/cache_client.h"
#include "cairn/client/device_importer.h"

namespace cairn::client {

// PEM files. All empty: plaintext.
struct TlsOptions {
  std::string ca_file = {};    // Certificate authorities to trust instead of the system's.
  std::string cert_file = {};  // The client's certificate chain and key: both or neither.
  std::string key_file = {};
  std::string server_name = {};  // Name expected in the node's certificate. Empty: the address's.
  // How often the files are read again. New connections use what was read last, so certificates may
  // be replaced while the client runs. In whole seconds, rounded up, at least 1.
  Duration reload_interval = std::chrono::seconds(10);
  bool enabled = false;  // True: TLS with the system's authorities and without a certificate of the
                         // client. Any of the files above implies it.
};

// kAuto: shared memory when the node offers it to this process, otherwise gRPC. When a call over
// shared memory fails, the client makes it over gRPC. Shared memory serves the namespaces that this
// client has opened and that belong to the tenant of the first one. kGrpc: never shared memory.
// kLocal: never bytes over gRPC. Match, Fetch, Push and Exists are UNAVAILABLE while there is no
// same-node session. For tests and measurements.
enum class PathChoice : uint8_t { kAuto = 0, kGrpc = 1, kLocal = 2 };
// Accepts "auto", "grpc" and "local". For any other text INVALID_ARGUMENT, which names `field`.
Result<PathChoice> ParsePathChoice(std::string_view text, std::string_view field);

// When the client stops asking a node that fails, and when it asks again (docs/program/errors.md).
struct BreakerOptions {
  uint32_t failures = 3;  // Failures in a row that open the breaker. At least 1.
  Duration first_backoff = std::chrono::milliseconds(500);
  Duration max_backoff = std::chrono::seconds(30);
  // The breaker makes each back-off longer by up to this fraction, so that clients do not all probe
  // at the same moment.
  double jitter = 0.2;
  uint64_t seed = 0;  // Seed of the random numbers for the jitter.
};

// With more than one address the client uses one node at a time, its home. The others matter only
// when the home is lost, and nothing is spread over them or written to two of them.
//
//   preferred   a Unix socket, a loopback address, or a node whose `host` is this client's `host`;
//               then a node whose `zone` is this client's; then any. Among equals the order follows
//               a hash of `home_key` and the address (rendezvous hashing): clients spread over the
//               nodes, each always prefers the same one, and when a node goes or comes, only its
//               own clients move.
//   lost        The session broke, the breaker opened, or the node drains. The next call goes to
//               the next node. Match, Get (before its first slice), Exists, Prefetch, OpenNamespace
//               and Stat also try again at up to two further nodes within their own deadline: the
//               first attempt has three quarters of the time. Leases and reservations of the lost
//               node end as when a single node goes: a fetch or a push fails, which is a miss.
//   back        When a node that is preferred to the home has answered for 30 s without a break,
//               new calls go there. Calls and leases of the home go on until they end.
//   unknown     A node tells its host and zone only in a session. A client with a `host` or `zone`
//               opens one session after the other, until it knows a node that is as near as can be.
struct ConnectOptions {
  // host:port, unix:/path, or dns:name:port for all addresses (A, AAAA) of a name. Several of these
  // with commas between them. The client looks names up every 30 s, and soon after it lost a node.
  // A look-up that fails changes nothing.
  std::string address = {};
  std::string client_name = "client";  // For the node's logs, at most 128 characters.
  // With several addresses. This client's machine and network zone, as the nodes' settings
  // cluster.host and cluster.zone call theirs. Empty: unknown. At most 128 characters each.
  std::string host = {}, zone = {};
  // With several addresses: clients with the same text prefer the same node. Ranks of one inference
  // engine that write parts of the same blocks need that, because a node has a block only when it
  // has all its parts. Empty: client_name.
  std::string home_key = {};
  // The only tenant whose namespaces this client will use. The node then refuses others with
  // PERMISSION_DENIED, and lets shared memory of this tenant alone be mapped. Empty: any.
  std::string tenant = {};
  TlsOptions tls = {};
  BreakerOptions breaker = {};
  Duration max_reconnect_backoff = std::chrono::seconds(1);
  PathChoice path = PathChoice::kAuto;
  // How long a same-node call spins, yielding to other threads, before it sleeps until its answer
  // comes. nullopt: 150 us on a machine with more than one CPU, otherwise 0.
  std::optional<Duration> spin = {};
  // Reads blocks where a node on this machine keeps them in a GPU's memory. Null: the node copies
  // such blocks to its host memory first. The chunks that a session got hold its tenant's blocks
  // alone until the session ends (docs/inside/formats/local.md).
  std::shared_ptr<DeviceImporter> devices = nullptr;
};

// Returns at once and connects in the background. A node that cannot be reached is not an error.
// INVALID_ARGUMENT: an address or a TLS file cannot be used, and the message names it. The client's
// destructor ends its session. No call may be running then.
Result<std::unique_ptr<CacheClient>> Connect(const ConnectOptions& options);
// As Connect. For a node on this machine, it uses the node's socket for operators (admin.socket:
// auto) if this user may: without client certificates, nodes allow the Admin service there only.
Result<std::unique_ptr<AdminClient>> ConnectAdmin(const ConnectOptions& options);
// Whether ConnectAdmin would use that socket: the node at `address` is on this machine, listens
// there, and is of this user. It connects to see.
bool HasOperatorSocket(const std::string& address);

}  // namespace cairn::client
