#include "clients/cpp/src/grpc/look_up.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace cairn::client {
namespace {

Status LookUp(const NodeName& name, std::vector<NodeAddress>* out) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(name.name.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return Errorf(StatusCode::kUnavailable, "field 'address': dns:{}:{}: {}", name.name, name.port,
                  error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  for (const addrinfo* it = found; it != nullptr; it = it->ai_next) {
    char host[NI_MAXHOST] = {};
    if (getnameinfo(it->ai_addr, it->ai_addrlen, host, sizeof host, nullptr, 0, NI_NUMERICHOST) !=
        0) {
      continue;
    }
    const bool v6 = it->ai_family == AF_INET6;
    out->push_back(
        {.address = fmt::format("{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", name.port),
         .name = name.name});
  }
  return OkStatus();
}

}  // namespace

HomeClient::Found LookUpNodes(const NodeList& nodes) {
  HomeClient::Found found;
  for (const std::string& address : nodes.addresses) found.nodes.push_back({.address = address});
  for (const NodeName& name : nodes.names) {
    if (Status status = LookUp(name, &found.nodes); !status.ok()) found.status = std::move(status);
  }
  return found;
}

}  // namespace cairn::client
