#pragma once
// Names of nodes, by the system's resolver.

#include "clients/cpp/src/core/home_client.h"
#include "clients/cpp/src/core/node_list.h"

namespace cairn::client {

// The addresses in the list, and those of its names (A and AAAA). Waits for the resolver, as long
// as /etc/resolv.conf lets it. UNAVAILABLE in the status: a name has no address or nobody answered;
// the message has the name.
HomeClient::Found LookUpNodes(const NodeList& nodes);

}  // namespace cairn::client
