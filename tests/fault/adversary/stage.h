#pragma once
// What a run is about: real servers with little room, and who is honest at each of their ports.

#include <memory>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "tests/fault/adversary/honest_load.h"
#include "tests/fault/adversary/tested_server.h"
#include "tests/fault/support/fault_support.h"

namespace cairn::fault {

// Where recipes find what they attack. All of it outlives them.
struct Places {
  std::vector<TestedServer*> nodes = {};
  // Of these a lone node has none.
  std::vector<TestedServer*> workers = {};
  TestedServer* router = nullptr;  // Before the workers.
  TestedServer* relay = nullptr;   // Before `router`, as before an engine; with a picker.
  std::string router_http = {}, relay_http = {}, picker = {};  // Addresses.
  std::string key = {};  // An API key of the hostile clients' tenant at `router` and `relay`.
};

// A server with the most memory that it may take, in bytes.
struct WatchedServer {
  std::string name;
  std::unique_ptr<TestedServer> server;
  uint64_t account_bytes = 0;
};

// Not thread-safe, but for places().
class Stage {
 public:
  virtual ~Stage() = default;

  // In the order in which they are stopped.
  virtual const std::vector<WatchedServer>& servers() const = 0;
  virtual const Places& places() const = 0;
  // Names of ports at which honest clients are measured.
  virtual std::vector<std::string> ports() const = 0;
  struct LoadOptions {
    std::string name;  // Begins with "honest-" or "second-".
    uint64_t seed = 1;
    // So many calls in flight, without a pause. 0: a few, with pauses.
    uint32_t threads = 0;
  };
  virtual std::unique_ptr<HonestLoad> NewLoad(const std::string& port,
                                              const LoadOptions& options) = 0;
  // Empty: nothing is held for hostile clients any more. Waits for that. The `honest` loads that
  // there are have been paused.
  virtual std::string StillHeld(size_t honest, milliseconds timeout) = 0;
  // Which tenants have much in the nodes' memory, for findings. Empty: none.
  virtual std::string Holders() { return ""; }
  // Forgets all tenants but the honest ones.
  virtual void DropHostile() = 0;
  // Empty, or what does not answer at the end.
  virtual std::string Silent() = 0;
};

// Forgets all of a node's tenants but the honest ones, whose names begin with "honest-".
void DropHostileTenants(const std::string& address);
// What a node may take by its metrics, and what the process needs beside that.
Result<uint64_t> NodeAccount(const TestedServer& node);

// One node in which everything fills up in seconds; the ports "grpc" and "local" (shared memory).
Result<std::unique_ptr<Stage>> StartNodeStage();
// A router, another one before it, two workers, and a cluster of three nodes; a port each.
Result<std::unique_ptr<Stage>> StartClusterStage();

}  // namespace cairn::fault
