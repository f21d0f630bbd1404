#pragma once
// Watching a node's events over gRPC.

#include <grpcpp/generic/generic_stub.h>

#include <memory>

#include "cairn/client/cache_client.h"

namespace cairn::client {

// Returns at once; a node that is away shows in the first Next. The stub outlives the stream.
std::unique_ptr<EventStream> NewEventStream(grpc::GenericStub* stub, const WatchOptions& options);

}  // namespace cairn::client
