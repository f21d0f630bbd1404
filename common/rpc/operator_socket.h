#pragma once
// A Unix socket for operators of a process: connections of the process's own user, and of root,
// become connections of its gRPC server.
//
// The kernel says who connects (SO_PEERCRED). A port on loopback cannot: sidecar proxies, forwarded
// ports and every user of the machine look the same there.

#include <grpcpp/server.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <thread>

#include "cairn/common/status.h"

namespace cairn::rpc {

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
