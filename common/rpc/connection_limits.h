#pragma once
// The limits on which both ends of a connection must agree, whatever they send.

namespace cairn::rpc {

inline constexpr int kHttp2FrameBytes = (1 << 24) - 1;

// Clients ping this often while a call is open, also without data. A server must allow it, or it
// closes the connection with "too many pings".
inline constexpr int kKeepaliveTimeMs = 60'000;
inline constexpr int kKeepaliveTimeoutMs = 10'000;
// What a server allows.
inline constexpr int kMinPingIntervalMs = 10'000;

}  // namespace cairn::rpc
