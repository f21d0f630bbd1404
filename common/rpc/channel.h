#pragma once
// The settings that all channels to our servers have in common.

#include <grpc/support/time.h>
#include <grpcpp/channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "cairn/common/clock.h"

namespace cairn::rpc {

// A connection of its own, with the limits of both ends (connection_limits.h).
grpc::ChannelArguments ChannelArguments(int max_message_bytes);

// A deadline for gRPC, of the clock that nobody sets: a time of day would move with it.
// TimePoint::max(): none.
gpr_timespec CallDeadline(TimePoint deadline);

// Lets a channel try again after a connection failed, by our own clock. gRPC's pause between two
// attempts is over when its timer says so, and after the time of day went back that timer stands
// still for as long as the clock went back (clock_step.h). Thread-safe.
class Reconnect {
 public:
  // `pause`: the least time between two attempts that it causes. By default gRPC's longest one.
  explicit Reconnect(std::shared_ptr<grpc::Channel> channel,
                     Duration pause = std::chrono::milliseconds(200));
  // Call it before a call of the channel. A channel that waits after a failure tries again now.
  void BeforeCall(TimePoint now);

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const Duration pause_;
  std::atomic<Duration::rep> next_{0};
};

}  // namespace cairn::rpc
