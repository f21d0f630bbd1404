#pragma once
// The processes of the demo: cache nodes that can be killed and started again at their address,
// and workers.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/client/cluster.h"
#include "cairn/common/status.h"
#include "tools/cairn/generator/generator.h"
#include "tools/cairn/process/cache_node.h"
#include "tools/cairn/process/child.h"

namespace cairn::cli {

// A cairn-worker process and the connection to it. Destroying it kills the process.
// Not thread-safe.
class WorkerProcess {
 public:
  struct Options {
    std::string name;  // The name of the log file.
    std::string model_path;
    std::string cache;  // Address; empty: none.
    int threads = 0;    // 0: the worker's default.
    std::string log_directory;
    std::vector<std::string> settings = {};  // More flags: "--arithmetic", "float32", ...
  };
  // Ready to serve. Errors of Child::Start and WaitReady.
  static Result<std::unique_ptr<WorkerProcess>> Start(const Options& options);

  Generator& generator() { return *generator_; }
  const std::string& address() const { return address_; }

 private:
  WorkerProcess(std::unique_ptr<Child> child, std::string address,
                std::unique_ptr<Generator> generator)
      : child_(std::move(child)), address_(std::move(address)), generator_(std::move(generator)) {}

  std::unique_ptr<Child> child_;
  std::string address_;
  std::unique_ptr<Generator> generator_;
};

// The node's counts between two moments.
struct NodeTraffic {
  uint64_t bytes = 0;  // Sent to workers.
  uint64_t host = 0;   // These bytes by the tier they came from.
  uint64_t disk = 0;
  uint64_t evicted_blocks = 0;  // From the host tier.
  uint64_t promoted_blocks = 0;
};
NodeTraffic Difference(const client::NodeStats& before, const client::NodeStats& after);

// All KV of a token, in binary16. REQUIRES: a native layout.
uint64_t BytesPerToken(const Layout& layout);

// The stored bits of a namespace's KV, headers included, over its numbers. 0 without blocks.
// REQUIRES: a native layout.
double BitsPerNumber(const client::NamespaceInfo& info);

// Not thread-safe.
class DemoNode {
 public:
  struct Options {
    std::string disk_directory;
    std::string log_path;
    std::string external;  // Address of a node that runs already; empty: start one.
    // Where the node that is started listens. Empty: a free port, the same after each Kill.
    std::string address = {};
    std::vector<std::string> settings = {};  // More flags of this node.
  };
  explicit DemoNode(Options options) : options_(std::move(options)), address_(options_.address) {}

  // Starts it, at the address of the last time if there was one. An external node is only
  // connected.
  Status Start(uint64_t host_bytes);
  // SIGKILL. REQUIRES: started, and not external.
  void Kill();
  // REQUIRES: as Kill.
  pid_t pid() const { return process_.child->pid(); }

  const std::string& address() const { return address_; }
  bool external() const { return !options_.external.empty(); }

  Result<client::NodeStats> Stat();
  // How it sees its cluster, and what it has read from other members and sent to them.
  Result<client::ClusterMembers> Members();
  // The namespace of a worker's `fingerprint`, 32 bytes. NOT_FOUND when the node does not know it.
  Result<client::NamespaceInfo> Namespace(const std::string& fingerprint);
  // Everything committed is on disk.
  Status Flush();

 private:
  const Options options_;
  std::string address_;
  CacheNodeProcess process_;
  std::unique_ptr<client::CacheClient> client_;
  std::unique_ptr<client::AdminClient> admin_;
  std::unique_ptr<client::ClusterClient> cluster_;
};

}  // namespace cairn::cli
