#pragma once
// Clients over gRPC. Link Cairn::client; in the tree, cairn_client_grpc.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cairn/client/cache_client.h"

namespace cairn::client {

// PEM files. All empty: plaintext.
struct TlsOptions {
  std::string ca_file = {};    // Trusts these authorities instead of the system's.
  std::string cert_file = {};  // Own certificate chain and key: both or neither.
  std::string key_file = {};
  std::string server_name = {};  // Name expected in the node's certificate, if not the address's.
  bool enabled = false;  // TLS with the system's authorities and no certificate of one's own;
                         // implied by any file.
};

// kAuto: shared memory where the node offers it to this process, else gRPC; a failure of the one is
// a call over the other. Shared memory serves the namespaces that this client has opened, of the
// first one's tenant. kGrpc: never shared memory. kLocal: never bytes over gRPC: Match, Fetch,
// Push and Exists are UNAVAILABLE while there is no same-node session (for tests and measurements).
enum class PathChoice : uint8_t { kAuto = 0, kGrpc = 1, kLocal = 2 };
// "auto", "grpc", "local"; else INVALID_ARGUMENT naming `field`.
Result<PathChoice> ParsePathChoice(std::string_view text, std::string_view field);

// When the client stops asking a node that fails, and when it asks again (docs/errors.md).
struct BreakerOptions {
  uint32_t failures = 3;  // In a row, until it opens. At least 1.
  Duration first_backoff = std::chrono::milliseconds(500);
  Duration max_backoff = std::chrono::seconds(30);
  // Back-offs are stretched by up to this fraction, so that clients do not probe in step.
  double jitter = 0.2;
  uint64_t seed = 0;  // Of the jitter.
};

struct ConnectOptions {
  std::string address = {};            // host:port, or unix:/path.
  std::string client_name = "client";  // For the node's logs, at most 128 characters.
  TlsOptions tls = {};
  BreakerOptions breaker = {};
  Duration max_reconnect_backoff = std::chrono::seconds(1);
  PathChoice path = PathChoice::kAuto;
  // How long a same-node call spins for its answer before it sleeps, yielding to others meanwhile.
  // nullopt: 150 us on a machine with more than one CPU, else not at all.
  std::optional<Duration> spin = {};
};

// Returns at once and connects in the background; a node that is away is not an error.
// INVALID_ARGUMENT for an address or TLS file that cannot be used, naming it. Destroying the client
// ends its session; no call may be running.
Result<std::unique_ptr<CacheClient>> Connect(const ConnectOptions& options);
Result<std::unique_ptr<AdminClient>> ConnectAdmin(const ConnectOptions& options);

}  // namespace cairn::client
