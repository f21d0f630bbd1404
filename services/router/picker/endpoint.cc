#include "services/router/picker/endpoint.h"

#include <arpa/inet.h>

#include "common/net/address.h"

namespace cairn::router {

std::string EndpointOf(std::string_view worker) {
  constexpr std::string_view kScheme = "://";
  if (const size_t scheme = worker.find(kScheme); scheme != std::string_view::npos) {
    worker.remove_prefix(scheme + kScheme.size());
  }
  return std::string(worker.substr(0, worker.find('/')));
}

Status CheckEndpoint(std::string_view worker) {
  const auto address = net::ParseListenAddress(EndpointOf(worker), "workers");
  in_addr v4{};
  in6_addr v6{};
  if (address.ok() && !address->is_unix &&
      (inet_pton(AF_INET, address->host.c_str(), &v4) == 1 ||
       inet_pton(AF_INET6, address->host.c_str(), &v6) == 1)) {
    return OkStatus();
  }
  return InvalidArgument(
      "workers: got '{}', expected an IP address and a port, such as http://10.0.0.1:8000, because "
      "picker.listen is set: a gateway looks no name up",
      worker);
}

}  // namespace cairn::router
