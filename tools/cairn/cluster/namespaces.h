#pragma once
// The part of a node that it shows to administrators only.

#include <vector>

#include "cairn/client/connect.h"

namespace cairn::cli {

// The namespaces of the node at `to.address`, one address. PERMISSION_DENIED: the caller may not
// see them. A caller that can show neither its user to the node's socket for operators nor a
// certificate is not an administrator, so the node is not even asked: it would log the refusal.
Result<std::vector<client::NamespaceInfo>> NamespacesOf(const client::ConnectOptions& to,
                                                        const client::CallOptions& call);

}  // namespace cairn::cli
