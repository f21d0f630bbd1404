#pragma once
// AdminClient over gRPC.

#include <grpcpp/channel.h>

#include <memory>

#include "cairn/client/cache_client.h"
#include "cairn/common/clock.h"

namespace cairn::client {

// `clock` must outlive the client.
std::unique_ptr<AdminClient> NewGrpcAdminClient(std::shared_ptr<grpc::Channel> channel,
                                                const Clock* clock);

}  // namespace cairn::client
