#pragma once
// The node under measurement and the clients that load it.

#include <memory>
#include <string>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/common/status.h"
#include "tools/cairn/bench/block_set.h"
#include "tools/cairn/bench/options.h"
#include "tools/cairn/process/cache_node.h"

namespace cairn::cli::bench {

// A directory that is removed with its contents.
class TemporaryDirectory {
 public:
  // Below `parent`; empty: below TMPDIR.
  static Result<TemporaryDirectory> Make(const std::string& parent);
  ~TemporaryDirectory();
  TemporaryDirectory() = default;
  TemporaryDirectory(TemporaryDirectory&& other) noexcept : path_(std::move(other.path_)) {
    other.path_.clear();
  }
  TemporaryDirectory& operator=(TemporaryDirectory&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct NodeNeeds {
  uint64_t host_bytes = 0;
  uint64_t disk_bytes = 0;  // 0: no disk tier.
  std::vector<std::string> settings = {};
};

// A node of our own, or the one at --cache. Not thread-safe.
class TestNode {
 public:
  // A node of our own gets `needs`; another must have them by itself.
  static Result<std::unique_ptr<TestNode>> Start(const BenchOptions& options,
                                                 const NodeNeeds& needs);

  // Kills our node and starts it again with what is on its disk, at the same address.
  Status Restart();

  const std::string& address() const { return address_; }
  bool own() const { return process_.child != nullptr; }
  // Empty for a node that is not ours.
  std::vector<pid_t> Pids() const;
  // A connection of its own, with `spec` opened. Waits until the node answers and, with
  // PathChoice::kLocal, until shared memory is there: UNAVAILABLE, saying why not, after 30 s.
  Result<std::unique_ptr<client::CacheClient>> Connect(client::PathChoice path,
                                                       const NamespaceSpec& spec) const;

 private:
  TestNode() = default;

  TemporaryDirectory directory_;
  CacheNodeOptions start_;
  std::optional<Duration> spin_;  // How long the clients spin.
  CacheNodeProcess process_;
  std::string address_;
  TlsFlags tls_;
};

// One connection for each of options.clients; the first error.
Result<std::vector<std::unique_ptr<client::CacheClient>>> ConnectAll(const TestNode& node,
                                                                     const BenchOptions& options,
                                                                     const NamespaceSpec& spec);

// Stores all blocks as chains of `chain`, a few MiB a call. The first error of a part.
Status Store(client::CacheClient& client, const BlockSet& set, uint64_t generation, uint32_t chain);

// Options of calls that wait as long as a benchmark must: a deadline that ends a call would be
// measured as speed.
client::MatchOptions PatientMatch();
client::FetchOptions PatientFetch(bool verify);
client::PushOptions PatientPush();
client::CallOptions PatientCall();

}  // namespace cairn::cli::bench
