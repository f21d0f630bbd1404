#pragma once
// The limits on which both ends of a connection must agree, whatever they send.

namespace cairn::rpc {

inline constexpr int kHttp2FrameBytes = (1 << 24) - 1;

// Clients ping this often while a call is open, also without data. A server must allow it, or it
// closes the connection with "too many pings".
inline constexpr int kKeepaliveTimeMs = 60'000;
inline constexpr int kKeepaliveTimeoutMs = 10'000;
// The limits that a server sets for its clients.
inline constexpr int kMinPingIntervalMs = 10'000;

// Calls of one connection that may be open at a time, also those that have sent no request yet. A
// client waits before it opens more.
inline constexpr int kMaxStreams = 4096;

}  // namespace cairn::rpc
