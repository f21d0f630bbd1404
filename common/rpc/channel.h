#pragma once
// What all channels to our servers have in common.

#include <grpcpp/support/channel_arguments.h>

#include <chrono>

#include "cairn/common/clock.h"

namespace cairn::rpc {

// A connection of its own, with the limits of both ends (connection_limits.h).
grpc::ChannelArguments ChannelArguments(int max_message_bytes);

// gRPC takes deadlines by the wall clock.
std::chrono::system_clock::time_point WallDeadline(TimePoint deadline);

}  // namespace cairn::rpc
