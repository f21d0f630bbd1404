#pragma once
// A name server in tests: a real dnsmasq on a free port of loopback, or of a machine of a network
// (network_lab.h).

#include <memory>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "tests/support/process.h"

namespace cairn::testing {

// Not thread-safe.
class NameServer {
 public:
  struct Service {
    std::string name, target;  // "_peer._tcp.cairn.test", "node-1.cairn.test"
    int port = 0;
  };
  struct Zone {
    std::string name;  // The name of the addresses.
    std::vector<std::string> addresses = {};
    std::vector<Service> services = {};
  };
  // Nothing runs until Serve. NOT_FOUND: dnsmasq is not installed.
  static Result<std::unique_ptr<NameServer>> Create(ServerPlace place = {});

  // Answers from now on as `zone` says, and returns when it does so.
  Status Serve(const Zone& zone);
  // Nobody listens any more.
  void Stop();
  Process& process() { return *process_; }
  std::string address() const { return fmt::format("{}:{}", place_.address, port_); }

 private:
  NameServer(ServerPlace place, int port) : place_(std::move(place)), port_(port) {}
  const ServerPlace place_;
  const int port_;
  std::unique_ptr<Process> process_;
};

}  // namespace cairn::testing
