#pragma once
// Makes gRPC credentials from TlsOptions.

#include <memory>

#include "common/net/tls.h"

namespace grpc {
class ServerContextBase;
class ServerCredentials;
}  // namespace grpc

namespace cairn::net {

// Credentials that follow the files when they change. REQUIRES: Check(options).ok().
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsOptions& options);

Caller CallerOf(const grpc::ServerContextBase& context);

}  // namespace cairn::net
