#pragma once
// Sizes and times that both ends of a connection must agree on.

namespace cairn::wire {

// Of Push, unless the node says otherwise. A block of 1 MiB and its header go in one; larger frames
// gain nothing and hold more memory.
inline constexpr int kFrameBytes = (1 << 20) + (64 << 10);
// Largest message of any kind: a frame and its overhead, 65536 keys, a list of namespaces.
inline constexpr int kMaxMessageBytes = 8 << 20;
inline constexpr int kHttp2FrameBytes = (1 << 24) - 1;

// Clients ping this often while a call is open, also without data. A server must allow it
// (GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS = kMinPingIntervalMs), else it closes the
// connection with "too many pings".
inline constexpr int kKeepaliveTimeMs = 60'000;
inline constexpr int kKeepaliveTimeoutMs = 10'000;
inline constexpr int kMinPingIntervalMs = 20'000;

}  // namespace cairn::wire
