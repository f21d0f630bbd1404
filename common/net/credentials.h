#pragma once
// Makes gRPC credentials from files.

#include <memory>
#include <string>
#include <string_view>

#include "common/net/tls.h"

namespace grpc {
class AuthContext;
class ChannelCredentials;
class ServerContextBase;
class ServerCredentials;
}  // namespace grpc

namespace cairn::net {

// Credentials that follow the files when they change, as long as they are right (checked_files.h).
// REQUIRES: Check(options).ok().
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsOptions& options);

// PEM files of a caller's side; each may be empty. `authorities`: to trust instead of the system's.
struct ChannelFiles {
  std::string authorities, certificate, private_key;
  Duration reload_interval = std::chrono::seconds(60);  // At least a second.
};
// TLS credentials that follow the files when they change. Channels with the same files share what
// reads them.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const ChannelFiles& files);

Caller CallerOf(const grpc::ServerContextBase& context);
// The names in the other side's certificate: of a server, when a call to it has ended. nullptr:
// none.
Caller NamesOf(const grpc::AuthContext* auth);
// The other side's certificate, as PEM, if its names count: CallerOf takes several times as long.
// It is a part of `auth`. Empty: there is none.
std::string_view CertificateOf(const grpc::AuthContext& auth);

}  // namespace cairn::net
