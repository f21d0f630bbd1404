#pragma once
// A Unix socket for operators of a process: connections of the process's own user, and of root,
// become connections of its gRPC server.
//
// The kernel says who connects (SO_PEERCRED). A port on loopback cannot: sidecar proxies, forwarded
// ports and every user of the machine look the same there.

#include <grpcpp/server.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "cairn/common/status.h"

namespace cairn::rpc {

// A process that connected, as the kernel told when it did.
struct Operator {
  uid_t uid = 0;
  pid_t pid = 0;  // 0: the process is in a PID namespace that this one does not see.

  std::string Describe() const;  // "uid 1000, pid 4711"
};

// The process behind a connection that gRPC calls `peer`. nullopt: it is no connection of an
// OperatorSocket of this process. Right as long as a call of the connection has not ended: until
// then gRPC keeps the descriptor, so its number is nobody else's. Thread-safe.
std::optional<Operator> OperatorOf(std::string_view peer);

// One thread, which accepts. Thread-safe.
class OperatorSocket {
 public:
  // `server` has started, and outlives the socket. FAILED_PRECONDITION: another process listens at
  // `path`. UNAVAILABLE: the socket cannot be made.
  static Result<std::unique_ptr<OperatorSocket>> Listen(const std::string& path,
                                                        grpc::Server* server);
  // Accepts no more, and removes the file. Open connections stay the server's.
  ~OperatorSocket();

  // Whether `uid` may use the sockets of this process.
  static bool Allows(uid_t uid);

 private:
  OperatorSocket(std::string path, grpc::Server* server)
      : path_(std::move(path)), server_(server) {}
  Status Open();
  void Run();
  void Accept();

  const std::string path_;
  grpc::Server* const server_;
  int listening_ = -1, stop_ = -1;
  bool bound_ = false;
  std::thread thread_;
};

}  // namespace cairn::rpc
