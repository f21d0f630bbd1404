#pragma once
// Watching a cluster with Python's values, as calls.h.

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "clients/python/src/cluster_watch.h"

namespace cairn::python {

std::shared_ptr<ClusterWatch> WatchCluster(const std::string& address,
                                           const std::string& client_name, nanobind::handle tls,
                                           const std::string& tenant, nanobind::handle fingerprint,
                                           nanobind::handle refresh, nanobind::handle lost_after);
// (kind, node_id, address, event), or None when `wait` has passed. event: as FromEvent, or None.
nanobind::object NextMemberEvent(ClusterWatch& watch, nanobind::handle wait);
// Ids of the members that are followed.
nanobind::list MemberIds(ClusterWatch& watch);

}  // namespace cairn::python
