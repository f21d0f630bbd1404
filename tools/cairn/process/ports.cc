#include "tools/cairn/process/ports.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

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

}  // namespace

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
  const timeval limit{.tv_sec = kAcceptSeconds, .tv_usec = 0};  // Of connect, too.
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  // One whose queue is full, or which hangs, is there.
  const bool listens =
      connect(fd, at->ai_addr, at->ai_addrlen) == 0 || errno == EINPROGRESS || errno == EAGAIN;
  close(fd);
  return listens;
}

}  // namespace cairn::cli
