#include "common/rpc/channel.h"

#include <grpc/grpc.h>

#include <utility>

#include "common/rpc/clock_step.h"
#include "common/rpc/connection_limits.h"

namespace cairn::rpc {

grpc::ChannelArguments ChannelArguments(int max_message_bytes) {
  // This also keeps gRPC alive until the process ends. Otherwise it shuts down with the last
  // channel, and closing that one waits for its poller: up to 10 s in gRPC 1.51.
  FollowClockSteps();
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(max_message_bytes);
  args.SetMaxSendMessageSize(max_message_bytes);
  args.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kHttp2FrameBytes);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A proxy of the environment is for the Internet, not for a node next door.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Finds out that a machine vanished without a word. Also sets TCP_USER_TIMEOUT.
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Also the time that one attempt to connect may take: the caller's own back-off is what spaces
  // attempts.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  // A pod that is replaced has its name and another address. gRPC would ask again after 30 s.
  args.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);
  return args;
}

gpr_timespec CallDeadline(TimePoint deadline) {
  if (deadline == TimePoint::max()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  // gRPC would wait a whole millisecond for what is over by less.
  if (deadline <= std::chrono::steady_clock::now()) return gpr_time_0(GPR_CLOCK_MONOTONIC);
  const auto since =
      std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch());
  return gpr_time_from_nanos(since.count(), GPR_CLOCK_MONOTONIC);
}

Reconnect::Reconnect(std::shared_ptr<grpc::Channel> channel, Duration pause)
    : channel_(std::move(channel)), pause_(pause) {}

void Reconnect::BeforeCall(TimePoint now) {
  if (channel_->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_TRANSIENT_FAILURE) return;
  const Duration::rep at = now.time_since_epoch().count();
  Duration::rep next = next_.load(std::memory_order_relaxed);
  if (at < next) return;
  if (!next_.compare_exchange_strong(next, at + pause_.count(), std::memory_order_relaxed)) return;
  grpc::experimental::ChannelResetConnectionBackoff(channel_.get());
}

}  // namespace cairn::rpc
