#include "tools/cairn/process/tcp_relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace cairn::cli {
namespace {

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

uint16_t PortOf(const std::string& address) {
  return static_cast<uint16_t>(std::stoul(address.substr(address.rfind(':') + 1)));
}

bool SendAll(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    data += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

}  // namespace

struct TcpRelay::Connection {
  int client = -1;
  int node = -1;
  std::thread to_node;
  std::thread to_client;

  void Break() const {
    shutdown(client, SHUT_RDWR);
    shutdown(node, SHUT_RDWR);
  }
  ~Connection() {
    Break();
    if (to_node.joinable()) to_node.join();
    if (to_client.joinable()) to_client.join();
    close(client);
    close(node);
  }
};

TcpRelay::TcpRelay(int listener, std::string address, std::string target)
    : listener_(listener),
      address_(std::move(address)),
      target_(std::move(target)),
      acceptor_([this] { Accept(); }) {}

Result<std::unique_ptr<TcpRelay>> TcpRelay::Start(const std::string& target) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener, 16) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    const int error = errno;
    if (listener >= 0) close(listener);
    return Errorf(StatusCode::kInternal, "a relay to {} cannot listen: {}", target,
                  std::strerror(error));
  }
  return std::unique_ptr<TcpRelay>(
      new TcpRelay(listener, fmt::format("127.0.0.1:{}", ntohs(address.sin_port)), target));
}

TcpRelay::~TcpRelay() {
  stopping_ = true;
  Release();
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  close(listener_);
  std::vector<std::unique_ptr<Connection>> connections;
  {
    MutexLock lock(mu_);
    connections.swap(connections_);
  }
}

void TcpRelay::SetTarget(const std::string& target) {
  MutexLock lock(mu_);
  target_ = target;
}

void TcpRelay::After(uint64_t bytes, std::function<void()> action) {
  MutexLock lock(mu_);
  trigger_at_ = from_node_.load() + bytes;
  action_ = std::move(action);
}

void TcpRelay::Hold() {
  MutexLock lock(mu_);
  held_ = true;
}

void TcpRelay::Release() {
  MutexLock lock(mu_);
  held_ = false;
  changed_.NotifyAll();
}

void TcpRelay::BreakAll() {
  MutexLock lock(mu_);
  for (const auto& connection : connections_) connection->Break();
}

bool TcpRelay::Triggered() const {
  MutexLock lock(mu_);
  return action_ == nullptr;
}

void TcpRelay::Accept() {
  while (!stopping_) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) return;
    uint16_t port = 0;
    {
      MutexLock lock(mu_);
      port = PortOf(target_);
    }
    const int node = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = Loopback(port);
    if (connect(node, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      close(client);
      close(node);
      continue;
    }
    const int on = 1;
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(node, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    auto connection = std::make_unique<Connection>();
    Connection* c = connection.get();
    c->client = client;
    c->node = node;
    c->to_node = std::thread([this, c] { Forward(c, c->client, c->node, false); });
    c->to_client = std::thread([this, c] { Forward(c, c->node, c->client, true); });
    MutexLock lock(mu_);
    connections_.push_back(std::move(connection));
  }
}

void TcpRelay::Forward(Connection* connection, int from, int to, bool from_node) {
  std::vector<char> buffer(64 << 10);
  while (true) {
    const ssize_t got = recv(from, buffer.data(), buffer.size(), 0);
    if (got <= 0) break;
    if (from_node) CountFromNode(static_cast<uint64_t>(got));
    if (!SendAll(to, buffer.data(), static_cast<size_t>(got))) break;
  }
  // One side is gone: so is the other.
  connection->Break();
}

void TcpRelay::CountFromNode(uint64_t bytes) {
  const uint64_t total = from_node_.fetch_add(bytes) + bytes;
  std::function<void()> action;
  {
    MutexLock lock(mu_);
    if (action_ != nullptr && total >= trigger_at_) action = std::exchange(action_, nullptr);
  }
  if (action) action();
  MutexLock lock(mu_);
  changed_.Wait(mu_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !held_; });
}

}  // namespace cairn::cli
