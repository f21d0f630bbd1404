#pragma once
// The addresses of nodes, as settings write them.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::client {

// A name that stands for nodes.
struct NodeName {
  std::string name = {};
  uint16_t port = 0;
};

struct NodeList {
  std::vector<std::string> addresses = {};  // "host:port", "unix:/path". None twice.
  std::vector<NodeName> names = {};         // "dns:name:port".
  // False: the text was one address, whose client is a client of one node.
  bool several() const { return !names.empty() || addresses.size() > 1; }
};

// "host:port", "unix:/path" or "dns:name:port", or several of them with commas and spaces between
// them. INVALID_ARGUMENT: names the field 'address' and what was malformed.
Result<NodeList> ParseNodeList(std::string_view text);
// The same for one host:port or unix:/path.
Status CheckAddress(std::string_view address);

}  // namespace cairn::client
