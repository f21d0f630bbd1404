#pragma once
// One call with one answer through a generated stub, on the caller's thread.

#include <grpcpp/client_context.h>

#include "cairn/client/cache_client.h"
#include "clients/cpp/src/grpc/channel.h"
#include "common/rpc/status.h"

namespace cairn::client {

// Thread-safe, as the stub is.
template <typename Stub, typename Request, typename Response>
Result<Response> CallUnary(Stub* stub,
                           grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                        Response*),
                           const Request& request, const Clock& clock, const CallOptions& options) {
  grpc::ClientContext context;
  Prepare(context, clock.Now() + options.deadline, options.trace);
  Response response;
  CAIRN_RETURN_IF_ERROR(rpc::FromGrpc((stub->*method)(&context, request, &response)));
  return response;
}

}  // namespace cairn::client
