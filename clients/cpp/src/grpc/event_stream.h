#pragma once
// Watching a node's events over gRPC.

#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <string>

#include "cairn/client/cache_client.h"

namespace cairn::client {

// Returns at once. If the node cannot be reached, the first Next says so. Stub and clock must
// outlive the stream.
// `session`: its id, or empty.
std::unique_ptr<EventStream> NewEventStream(grpc::GenericStub* stub, const std::string& session,
                                            const WatchOptions& options, const Clock* clock);

}  // namespace cairn::client
