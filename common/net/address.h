#pragma once
// Addresses to listen on: "host:port", "[v6]:port", "unix:/path".

#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::net {

struct ListenAddress {
  bool is_unix = false;
  std::string host;  // Without brackets; or the path.
  uint16_t port = 0;
  // "host:port" with the given port, brackets where they are needed.
  std::string WithPort(int port) const;
};

// INVALID_ARGUMENT naming `field` and what is `expected` there.
Result<ListenAddress> ParseListenAddress(
    const std::string& text, const std::string& field,
    std::string_view expected = "host:port such as 127.0.0.1:7400, [::1]:7400 or unix:/path");

// A process's setting and its address.
struct NamedAddress {
  std::string setting;
  ListenAddress address;
};
// INVALID_ARGUMENT, naming both settings: two of them ask for the same port or path, so that the
// second could not be bound. A wildcard such as 0.0.0.0 takes its port on all addresses.
Status CheckDistinct(const std::vector<NamedAddress>& addresses);

// True for 127.0.0.0/8, ::1, "localhost" and Unix sockets, which other machines cannot reach.
bool IsLocal(const ListenAddress& address);

// Why this process cannot bind the address now, as the system says it. Empty: it can. For those
// whose library does not say it.
std::string BindError(const ListenAddress& address);

}  // namespace cairn::net
