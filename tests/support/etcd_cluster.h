#pragma once
// etcd in tests: real members of one cluster, as child processes on free ports of loopback, or each
// in a machine of a network (network_lab.h).

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
    // Empty: loopback, here. Else one for each member, which this process can reach.
    std::vector<ServerPlace> places = {};
    // Added to each member's arguments.
    std::vector<std::string> arguments = {};
    // Clients connect with TLS: PEM files of the server.
    std::string certificate = {}, key = {};
  };
  // Returns when the cluster answers. NOT_FOUND: etcd is not installed.
  static Result<std::unique_ptr<EtcdCluster>> Start(Options options);

  std::vector<std::string> endpoints() const;  // "ADDRESS:PORT".
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
    ServerPlace place;
    int client_port = 0, peer_port = 0;
    std::string client() const { return fmt::format("{}:{}", place.address, client_port); }
    std::string peer() const { return fmt::format("http://{}:{}", place.address, peer_port); }
    std::unique_ptr<TemporaryDirectory> directory;
    std::unique_ptr<Process> process;
  };
  explicit EtcdCluster(Options options) : options_(std::move(options)) {}
  Status Launch(int i);

  const Options options_;
  std::string token_;
  std::vector<Member> members_;
};

// A port of loopback on which nobody listens now, and nobody else will as long as this process
// runs: the kernel gives it to nobody who asks for any, and no other test gets it from this call. A
// server may be started on it again and again. Thread-safe.
int FreePort();
// The first of `count` such ports, one after the other.
int FreePorts(int count);

}  // namespace cairn::testing
