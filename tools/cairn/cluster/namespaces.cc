#include "tools/cairn/cluster/namespaces.h"

namespace cairn::cli {

Result<std::vector<client::NamespaceInfo>> NamespacesOf(const client::ConnectOptions& to,
                                                        const client::CallOptions& call) {
  // A Unix socket that was named may be the one for operators.
  const bool may_be_admin = to.address.starts_with("unix:") || !to.tls.cert_file.empty() ||
                            client::HasOperatorSocket(to.address);
  if (!may_be_admin) {
    return Errorf(StatusCode::kPermissionDenied,
                  "the node tells them to its own user and to root at its admin.socket, and to "
                  "certificates of tls.admin_identities; found no such socket and got no "
                  "certificate (--cache unix:PATH names a socket)");
  }
  CAIRN_ASSIGN_OR_RETURN(const auto admin, client::ConnectAdmin(to));
  return admin->ListNamespaces("", call);
}

}  // namespace cairn::cli
