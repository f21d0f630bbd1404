#include "tools/cairn/process/ports.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>
#include <random>

namespace cairn::cli {
namespace {

constexpr int kAcceptSeconds = 1;  // Loopback answers at once, if the machine is not very busy.

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// nullptr: it names none.
Addresses Resolve(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (colon == address.npos ||
      getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found) != 0) {
    found = nullptr;
  }
  return {found, &freeaddrinfo};
}

constexpr int kLowestPort = 10'000, kHighestPort = 65'535;

// In an order that others do not have. 0, which is any, if the kernel gives all of them.
std::vector<int> PortsThatTheKernelGivesNobody() {
  int low = 32'768, high = 60'999;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> low >> high;
  std::vector<int> ports;
  for (int port = kLowestPort; port <= kHighestPort; ++port) {
    if (port < low || port > high) ports.push_back(port);
  }
  std::shuffle(ports.begin(), ports.end(), std::mt19937(std::random_device{}()));
  return ports;
}

// The port of a bound socket; 0: it cannot be bound.
int Bind(int fd, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  return bound ? ntohs(address.sin_port) : 0;
}

}  // namespace

Result<std::vector<std::string>> FreeLoopbackAddresses(size_t count) {
  std::vector<int> ports = PortsThatTheKernelGivesNobody();
  if (ports.size() < count) ports.assign(count, 0);
  std::vector<int> sockets;  // All stay open until the last one is chosen: no port comes twice.
  std::vector<std::string> addresses;
  for (size_t i = 0; i < ports.size() && addresses.size() < count; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) break;
    sockets.push_back(fd);
    const int port = Bind(fd, ports[i]);
    if (port != 0) addresses.push_back(fmt::format("127.0.0.1:{}", port));
  }
  for (const int fd : sockets) close(fd);
  if (addresses.size() == count) return addresses;
  return Errorf(StatusCode::kInternal, "127.0.0.1: {} ports are free, expected {}",
                addresses.size(), count);
}

Status CheckFree(const std::string& address) {
  const Addresses at = Resolve(address);
  const int fd = at ? socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
  if (fd < 0) return OkStatus();
  const int on = 1;  // As servers do: connections that have ended keep no port.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // Only a listener knows of listeners that share the port with it otherwise.
  const bool taken =
      (bind(fd, at->ai_addr, at->ai_addrlen) != 0 || listen(fd, 1) != 0) && errno == EADDRINUSE;
  close(fd);
  if (!taken) return OkStatus();
  return Errorf(StatusCode::kFailedPrecondition, "{} is taken", address);
}

bool SomebodyListens(const std::string& address) {
  const Addresses at = Resolve(address);
  const int fd = at ? socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
  if (fd < 0) return false;
  const timeval limit{.tv_sec = kAcceptSeconds, .tv_usec = 0};  // The limit of connect, too.
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  // One whose queue is full, or which hangs, is there.
  const bool listens =
      connect(fd, at->ai_addr, at->ai_addrlen) == 0 || errno == EINPROGRESS || errno == EAGAIN;
  close(fd);
  return listens;
}

}  // namespace cairn::cli
