#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "tools/cairn/bench/yardstick.h"

namespace cairn::cli::bench {
namespace {

constexpr size_t kTcpBlock = size_t{1} << 20;
constexpr size_t kInFlight = 4;

Status SocketError(const char* what) {
  return Errorf(StatusCode::kUnavailable, "raw TCP: {}: {}", what, std::strerror(errno));
}

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

bool SendAll(int fd, const std::byte* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL);
    if (n <= 0) {
      if (n < 0 && errno == EINTR) continue;
      return false;
    }
    data += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool ReceiveAll(int fd, std::byte* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = recv(fd, data, bytes, 0);
    if (n <= 0) {
      if (n < 0 && errno == EINTR) continue;
      return false;
    }
    data += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

// Both ends of one connection over loopback.
struct Connection {
  Socket client{-1}, server{-1};
};

Status SetCongestionControl(int fd, const std::string& name) {
  if (name.empty()) return OkStatus();
  if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                 static_cast<socklen_t>(name.size())) != 0) {
    return InvalidArgument("congestion control: got '{}', expected one that the kernel has ({})",
                           name, std::strerror(errno));
  }
  return OkStatus();
}

Result<Connection> Connect(const std::string& congestion_control) {
  Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  const auto any = reinterpret_cast<sockaddr*>(&address);
  if (listener.fd() < 0 || bind(listener.fd(), any, length) != 0 || listen(listener.fd(), 1) != 0 ||
      getsockname(listener.fd(), any, &length) != 0) {
    return SocketError("listen");
  }
  Connection connection;
  connection.client = Socket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connection.client.fd() < 0) return SocketError("socket");
  CAIRN_RETURN_IF_ERROR(SetCongestionControl(connection.client.fd(), congestion_control));
  if (connect(connection.client.fd(), any, length) != 0) return SocketError("connect");
  connection.server = Socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (connection.server.fd() < 0) return SocketError("accept");
  CAIRN_RETURN_IF_ERROR(SetCongestionControl(connection.server.fd(), congestion_control));
  const int on = 1;
  for (const int fd : {connection.client.fd(), connection.server.fd()}) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  return connection;
}

class TcpYardstick final : public Yardstick {
 public:
  TcpYardstick(const YardstickBuffers& buffers, std::string congestion_control)
      : buffers_(buffers), wanted_(std::move(congestion_control)), live_(wanted_) {}

  std::string name() const override { return wanted_.empty() ? "tcp" : "tcp_" + wanted_; }
  std::string description() const override {
    return fmt::format("TCP over loopback ({}), requests for 1 MiB, {} in flight", live_,
                       kInFlight);
  }

  Result<double> Measure() override {
    CAIRN_ASSIGN_OR_RETURN(Connection connection, Connect(wanted_));
    char name[16] = {};
    socklen_t length = sizeof(name);
    if (getsockopt(connection.server.fd(), IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0) {
      live_ = name;
    }

    const auto source = buffers_.source.bytes(), destination = buffers_.destination.bytes();
    const size_t blocks = source.size() / kTcpBlock;
    std::jthread server([&] {
      std::byte request[8];
      for (size_t i = 0; i < kWarmUp + blocks; ++i) {
        if (!ReceiveAll(connection.server.fd(), request, sizeof(request)) ||
            !SendAll(connection.server.fd(), source.data() + i % blocks * kTcpBlock, kTcpBlock)) {
          return;
        }
      }
    });
    // The server must not wait for requests that never come when we give up.
    const auto fail = [&](const char* what) {
      const Status status = SocketError(what);
      shutdown(connection.server.fd(), SHUT_RDWR);
      return status;
    };
    const std::byte request[8] = {};
    size_t asked = 0;
    auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < kWarmUp + blocks; ++i) {
      // The first blocks find the window small: they are not counted.
      if (i == kWarmUp) start = std::chrono::steady_clock::now();
      for (; asked < std::min(i + kInFlight, kWarmUp + blocks); ++asked) {
        if (!SendAll(connection.client.fd(), request, sizeof(request))) return fail("send");
      }
      if (!ReceiveAll(connection.client.fd(), destination.data() + i % blocks * kTcpBlock,
                      kTcpBlock)) {
        return fail("receive");
      }
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return static_cast<double>(blocks * kTcpBlock) / took.count() / 1e9;
  }

 private:
  static constexpr size_t kWarmUp = 16;

  const YardstickBuffers& buffers_;
  const std::string wanted_;
  std::string live_;
};

}  // namespace

std::unique_ptr<Yardstick> NewTcpYardstick(const YardstickBuffers& buffers,
                                           const std::string& congestion_control) {
  return std::make_unique<TcpYardstick>(buffers, congestion_control);
}

}  // namespace cairn::cli::bench
