#include "common/net/congestion.h"

#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

namespace cairn::net {
namespace {

bool ListensOn(int fd, int port) {
  int listening = 0;
  socklen_t size = sizeof listening;
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || listening == 0) {
    return false;
  }
  sockaddr_storage address = {};
  size = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return false;
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port) == port;
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port) == port;
  }
  return false;
}

bool Set(int fd, std::string_view name) {
  return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                    static_cast<socklen_t>(name.size())) == 0;
}

std::string Live(int fd) {
  char name[16] = {};
  socklen_t size = sizeof name;
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) != 0) return {};
  return std::string(name, strnlen(name, sizeof name));
}

std::string Available() {
  std::string line;
  std::ifstream file("/proc/sys/net/ipv4/tcp_available_congestion_control");
  std::getline(file, line);
  return line;
}

}  // namespace

Result<std::string> ListenerCongestionControl(int port, const std::string& wanted,
                                              const std::string& field) {
  const auto close = [](DIR* d) { closedir(d); };
  const std::unique_ptr<DIR, decltype(close)> descriptors(opendir("/proc/self/fd"), close);
  std::string live;
  while (const dirent* entry = descriptors == nullptr ? nullptr : readdir(descriptors.get())) {
    const int fd = std::atoi(entry->d_name);  // "." and ".." read as 0, which is no listener.
    if (!ListensOn(fd, port)) continue;
    if (wanted == "auto") {
      // Which every process may choose.
      if (Live(fd) == "bbr" && !Set(fd, "cubic")) Set(fd, "reno");
    } else if (!wanted.empty() && !Set(fd, wanted)) {
      return InvalidArgument("{}: got '{}' ({}), expected one that the kernel has: {}", field,
                             wanted, std::strerror(errno), Available());
    }
    live = Live(fd);
  }
  if (live.empty()) {
    return Errorf(StatusCode::kNotFound, "{}: no socket of this process listens on port {}", field,
                  port);
  }
  return live;
}

}  // namespace cairn::net
