#pragma once
// The name of an endpoint for a gateway: the "IP:PORT" of a worker.

#include <set>
#include <string>
#include <string_view>

#include "cairn/common/status.h"

namespace cairn::router {

// The part between the scheme and the path of "http://10.0.0.1:8000", "https://[fd00::1]:443/" or
// "10.0.0.1:8000".
std::string EndpointOf(std::string_view worker);

// INVALID_ARGUMENT: it has a name in place of an IP address, which gateways do not look up, or no
// port.
Status CheckEndpoint(std::string_view worker);

// The endpoints from which a gateway wants one, for one request. Immutable.
class EndpointSubset {
 public:
  explicit EndpointSubset(std::set<std::string> endpoints) : endpoints_(std::move(endpoints)) {}
  bool Has(const std::string& worker) const { return endpoints_.contains(EndpointOf(worker)); }
  bool empty() const { return endpoints_.empty(); }

 private:
  std::set<std::string> endpoints_;
};

}  // namespace cairn::router
