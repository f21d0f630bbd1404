#pragma once
// etcd in tests: real members of one cluster, as child processes on free ports of loopback.

#include <memory>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "tests/support/process.h"

namespace cairn::testing {

// Not thread-safe.
class EtcdCluster {
 public:
  struct Options {
    int members = 3;
    // Added to each member's arguments.
    std::vector<std::string> arguments = {};
    // Clients connect with TLS: PEM files of the server.
    std::string certificate = {}, key = {};
  };
  // Returns when the cluster answers. NOT_FOUND: etcd is not installed.
  static Result<std::unique_ptr<EtcdCluster>> Start(Options options);

  std::vector<std::string> endpoints() const;  // "127.0.0.1:PORT".
  Process& member(int i) { return *members_[static_cast<size_t>(i)].process; }
  // The index of the leader. UNAVAILABLE: there is none.
  Result<int> Leader();
  void Kill(int i);
  // On the same ports; `wiped`: with an empty disk. All members must be killed before any is wiped.
  Status Restart(int i, bool wiped);
  // Waits until a majority answers.
  Status WaitUntilReady();
  // Runs etcdctl with these arguments, against all endpoints. Returns its stdout.
  Result<std::string> Ctl(const std::vector<std::string>& arguments);

 private:
  struct Member {
    int client_port = 0, peer_port = 0;
    std::unique_ptr<TemporaryDirectory> directory;
    std::unique_ptr<Process> process;
  };
  explicit EtcdCluster(Options options) : options_(std::move(options)) {}
  Status Launch(int i);

  const Options options_;
  std::string token_;
  std::vector<Member> members_;
};

// A port of loopback on which nobody listens now.
int FreePort();

}  // namespace cairn::testing
