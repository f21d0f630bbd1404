#pragma once
// A running cache node: tiers, engine, services, ports; and its orderly end.

#include <memory>
#include <string>

#include "services/cache/rpc/node_config.h"
#include "services/common/status/status.h"

namespace cairn::cache {

class Node {
 public:
  virtual ~Node() = default;  // Stops hard where Shutdown was not called.
  // Returns once requests are served. `config` passed its schema's checks.
  static Result<std::unique_ptr<Node>> Start(const NodeConfig& config);

  virtual const std::string& address()
      const = 0;  // Of the data port, with the port that was picked.
  virtual const std::string& admin_address() const = 0;
  // Refuses new writes, tells clients, lets calls under way end, writes what is committed to disk, closes the ports. The status is that of
  // the last flush: not OK means that something committed is not on disk. Call once.
  virtual Status Shutdown() = 0;
};

}  // namespace cairn::cache
