#include "common/net/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "common/lifecycle/descriptor.h"

namespace cairn::net {

std::string ListenAddress::WithPort(int with_port) const {
  if (is_unix) return fmt::format("unix:{}", host);
  if (host.find(':') != std::string::npos) return fmt::format("[{}]:{}", host, with_port);
  return fmt::format("{}:{}", host, with_port);
}

Result<ListenAddress> ParseListenAddress(const std::string& text, const std::string& field,
                                         std::string_view expected) {
  const auto bad = [&] {
    return InvalidArgument("{}: got '{}', expected {}", field, text, expected);
  };
  // A 0 would end the path that the kernel sees, and a control character a line of the log.
  const bool control = std::any_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < ' ' || c == 0x7f;
  });
  if (control) return bad();
  ListenAddress address;
  if (text.rfind("unix:", 0) == 0) {
    address.is_unix = true;
    address.host = text.substr(5);
    // sockaddr_un holds 108 bytes with the final zero.
    if (address.host.empty() || address.host.front() != '/' || address.host.size() > 107) {
      return bad();
    }
    return address;
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return bad();
  address.host = text.substr(0, colon);
  if (address.host.front() == '[') {
    if (address.host.size() < 3 || address.host.back() != ']') return bad();
    address.host = address.host.substr(1, address.host.size() - 2);
    if (address.host.find(':') == std::string::npos) return bad();
  } else if (address.host.find(':') != std::string::npos) {
    return bad();  // ::1:7400 could mean two things.
  }
  if (address.host.find_first_of("[]/ ") != std::string::npos) return bad();
  const char* begin = text.data() + colon + 1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(begin, end, address.port);
  if (error != std::errc() || stop != end) return bad();
  return address;
}

Status CheckDistinct(const std::vector<NamedAddress>& addresses) {
  const auto wildcard = [](const ListenAddress& a) {
    return a.host == "0.0.0.0" || a.host == "::";
  };
  const auto host = [](const ListenAddress& a) {
    return a.host == "localhost" ? std::string("127.0.0.1") : a.host;
  };
  const auto same = [&](const ListenAddress& a, const ListenAddress& b) {
    if (a.is_unix != b.is_unix) return false;
    if (a.is_unix) return a.host == b.host;
    if (a.port == 0 || a.port != b.port) return false;
    return host(a) == host(b) || wildcard(a) || wildcard(b);
  };
  for (size_t i = 0; i < addresses.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (!same(addresses[i].address, addresses[j].address)) continue;
      return InvalidArgument(
          "{}: got '{}', which {} has already, expected another one", addresses[i].setting,
          addresses[i].address.WithPort(addresses[i].address.port), addresses[j].setting);
    }
  }
  return OkStatus();
}

bool IsLocal(const ListenAddress& address) {
  if (address.is_unix || address.host == "localhost") return true;
  in_addr v4{};
  if (inet_pton(AF_INET, address.host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  if (inet_pton(AF_INET6, address.host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return false;
}

namespace {

std::string TryToBind(const sockaddr* address, socklen_t bytes) {
  const Descriptor probe(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  const bool bound = probe.valid() &&
                     setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                     bind(probe.get(), address, bytes) == 0 && listen(probe.get(), 1) == 0;
  return bound ? "" : std::strerror(errno);
}

}  // namespace

std::string BindError(const ListenAddress& address) {
  if (address.is_unix) {
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    address.host.copy(at.sun_path, sizeof at.sun_path - 1);
    const std::string error = TryToBind(reinterpret_cast<const sockaddr*>(&at), sizeof at);
    if (error.empty()) unlink(address.host.c_str());
    return error;
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (failed != 0) return gai_strerror(failed);
  const std::string error = TryToBind(found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return error;
}

}  // namespace cairn::net
