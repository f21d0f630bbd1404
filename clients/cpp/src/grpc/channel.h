#pragma once
// Channels to a node.

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>

#include "cairn/client/connect.h"
#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/rpc/channel.h"

namespace cairn::client {

using rpc::CallDeadline;

// A channel with its own connection. Does not connect yet. INVALID_ARGUMENT, which names the bad
// address or TLS file.
Result<std::shared_ptr<grpc::Channel>> NewChannel(const ConnectOptions& options);

// Deadline (TimePoint::max(): none) and trace of a call. A trace that the node would refuse is left
// out.
void Prepare(grpc::ClientContext& context, TimePoint deadline, const std::string& trace);

}  // namespace cairn::client
