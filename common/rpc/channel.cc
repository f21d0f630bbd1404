#include "common/rpc/channel.h"

#include <grpc/grpc.h>

#include "common/rpc/connection_limits.h"

namespace cairn::rpc {

grpc::ChannelArguments ChannelArguments(int max_message_bytes) {
  // gRPC lives until the process ends. Otherwise it shuts down with the last channel, and closing
  // that one waits for its poller: up to 10 s in gRPC 1.51.
  [[maybe_unused]] static const bool kept = (grpc_init(), true);
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
  return args;
}

std::chrono::system_clock::time_point WallDeadline(TimePoint deadline) {
  const TimePoint now = std::chrono::steady_clock::now();
  // gRPC would wait a whole millisecond for what is over by less.
  if (deadline <= now) return {};
  const auto left = deadline - now;
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(left);
}

}  // namespace cairn::rpc
