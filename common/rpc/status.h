#pragma once
// Statuses between our code and gRPC's. Both use the numbers of google.rpc.Code, so nothing is
// lost.

#include <grpcpp/support/status.h>

#include "cairn/common/status.h"

namespace cairn::rpc {

grpc::Status ToGrpc(const Status& status);
// Codes that this version does not know read as UNKNOWN. If an attempt to connect failed because of
// TLS or another protocol, the meaning follows gRPC's own words.
Status FromGrpc(const grpc::Status& status);

}  // namespace cairn::rpc
