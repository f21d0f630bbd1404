#pragma once
// The gRPC server of a process: its ports, its limits, and the calls that come in through them.

#include <grpcpp/server.h>

#include <cstddef>
#include <memory>
#include <string>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/net/tls.h"
#include "common/rpc/call_server.h"
#include "common/rpc/operator_socket.h"

namespace cairn::rpc {

// Add methods to calls(), call Start, and then Shutdown. One thread at a time. The objects that
// methods use must outlive the server. Instead of Start: Listen, what needs the port and must be
// there before the first call, and Serve.
class Server {
 public:
  struct Options {
    std::string listen;            // host:port, port 0 picks one; or unix:/path.
    std::string listen_unix = {};  // unix:/path of a second port, without TLS; empty: none.
    net::TlsOptions tls = {};
    int max_message_bytes = 4 << 20;  // The largest message that a client may send.
    size_t memory_bytes = 0;          // For what gRPC receives; 0: no bound.
    Duration keepalive{0};            // Pings to idle clients; 0: none.
    Duration max_connection_age{0};   // Clients connect again after that; 0: never.
  };

  Server() = default;
  ~Server();  // Shutdown(0).
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  CallServer* calls() { return &calls_; }
  const CallServer& calls() const { return calls_; }
  // INVALID_ARGUMENT: an address or TLS files cannot be used. PERMISSION_DENIED: other machines can
  // reach a port without TLS, and `tls` does not allow that. FAILED_PRECONDITION: another process
  // listens at a Unix socket. UNAVAILABLE: an address cannot be bound.
  Status Start(const Options& options);
  // Calls that come wait for Serve. Errors as Start.
  Status Listen(const Options& options);
  void Serve();
  // Takes no new calls, cancels calls that still run after `grace`, and waits until the last one
  // has ended. Idempotent.
  void Shutdown(Duration grace);

  // The address that it listens on: `listen`, with the port that was picked.
  const std::string& address() const { return address_; }
  // 0 for a Unix socket.
  int port() const { return port_; }

  // Serves the process's own user and root at a Unix socket; net::CallerOf then says so. REQUIRES:
  // Start was OK. Errors as OperatorSocket::Listen.
  Status ListenForOperators(const std::string& path);

 private:
  CallServer calls_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<OperatorSocket> operators_;
  std::string address_;
  int port_ = 0;
};

}  // namespace cairn::rpc
