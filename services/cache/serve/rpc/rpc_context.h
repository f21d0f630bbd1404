#pragma once
// The state that the node's services share.

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/concurrency/executor.h"
#include "common/net/tls.h"
#include "common/rpc/call.h"
#include "common/rpc/context.h"
#include "services/cache/serve/local/local_server.h"
#include "services/cache/serve/rpc/sessions.h"
#include "services/cache/store/engine/cache_engine.h"
#include "services/cache/store/state/memory_account.h"

namespace cairn::cache {

struct RpcOptions {
  uint32_t max_in_flight = 1024;  // Calls under way, sessions and watches not counted.
  // Each is shared among connections (Gate).
  uint32_t max_sessions = 1024;
  uint32_t max_watches = 64;
  uint32_t max_flushes = 64;              // Under way and waiting.
  uint32_t max_frame_bytes = 4u << 20;    // Limit for a frame of Push.
  uint32_t fetch_frame_bytes = 1u << 20;  // Data in one frame of Fetch.
  uint64_t send_bytes = 256ull << 20;     // Frames of all fetches that are on their way to readers.
  Duration heartbeat = std::chrono::seconds(5);
  Duration fetch_stall = std::chrono::seconds(30);  // A fetch that waits longer for one slice ends.
  Duration push_stall = std::chrono::seconds(30);   // A push whose client is silent longer ends.
  // How long a reader may leave a frame where it is: when its lease is over; when others wait for
  // room that it holds.
  Duration lease_grace = std::chrono::seconds(1);
  Duration patience = std::chrono::seconds(2);
  net::TlsOptions tls;
  net::AdminRule admin;
};

// All that it points to must outlive the server. Threads: as rpc::Context.
struct RpcContext : rpc::Context {
  CacheEngine* engine = nullptr;
  MemoryAccount* memory = nullptr;     // The account of the whole node.
  Executor* executor = nullptr;        // Calls that may take a while.
  Executor* fetch_executor = nullptr;  // Frames of fetches: they wait for disk.
  Executor* flush_executor = nullptr;  // Flush waits longest, and may not hold up the others.
  Sessions* sessions = nullptr;
  LocalServer* local = nullptr;  // The same-node path; nullptr where there is none.
  // Makes the process drain, without waiting. Empty: it cannot.
  std::function<void()> begin_drain;
  RpcOptions options;
  std::string node_id;
  uint64_t node_epoch = 0;
  // Told to clients, which prefer a node that is near. Empty: not set.
  std::string host = {}, zone = {};
};

// Whether the caller may do what asks for the role with this namespace. NOT_FOUND if not, as for
// one that is not there: nobody learns which namespaces others have.
Status CheckNamespace(const RpcContext& rpc, const rpc::Call& call, const Digest& fingerprint,
                      auth::Role role);

}  // namespace cairn::cache
