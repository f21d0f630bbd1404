#pragma once
// The questions of the commands about a cluster to its nodes.

#include <string>
#include <string_view>
#include <vector>

#include "cairn/client/cluster.h"

namespace cairn::cli {

// Each call ends after the time that the command line allows. Addresses are host:port. Thread-safe.
class ClusterNodes {
 public:
  virtual ~ClusterNodes() = default;
  virtual Result<client::ClusterMembers> Members(const std::string& address) = 0;
  virtual Result<client::NodeStats> Stat(const std::string& address) = 0;
  // As NamespacesOf.
  virtual Result<std::vector<client::NamespaceInfo>> Namespaces(const std::string& address) = 0;
  virtual Result<client::DropResult> BumpEpoch(const std::string& address,
                                               const Digest& fingerprint) = 0;
  virtual Result<client::DropResult> DropTenant(const std::string& address,
                                                std::string_view tenant) = 0;
  virtual Result<bool> Drain(const std::string& address) = 0;
};

}  // namespace cairn::cli
