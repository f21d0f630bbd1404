#pragma once
// The client of one node, as a client of several nodes uses it.

#include <cstdint>
#include <optional>
#include <string>

#include "cairn/client/cache_client.h"
#include "clients/cpp/src/core/known_namespace.h"

namespace cairn::client {

// How a node looks to its client now.
enum class NodeCondition : uint8_t {
  kOpening,  // There has been no session yet.
  kOpen,     // There is a session, and calls succeed.
  kLost,     // The session ended or was refused, calls fail in a row, or the node drains.
};

// A node's answer about itself when a session opens.
struct NodePlace {
  std::string node_id = {};
  std::string host = {}, zone = {};  // Empty: the node does not say.
};

// Thread-safe.
class NodeClient : public CacheClient {
 public:
  virtual NodeCondition condition() const = 0;
  // nullopt before the first session.
  virtual std::optional<NodePlace> place() const = 0;
  // Opens the namespace whenever a session begins, and soon in a session that is open. Does not
  // wait. RESOURCE_EXHAUSTED: there are too many.
  virtual Status Remember(const NamespaceSpec& spec, const NamespaceOptions& how) = 0;
  // Asks the node for something small. The breaker hears of it.
  virtual Status Probe(Duration within) = 0;
};

}  // namespace cairn::client
