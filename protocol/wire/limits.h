#pragma once
// Sizes of messages that both ends of a connection must agree on.

namespace cairn::wire {

// Of Push, unless the node says otherwise. A block of 1 MiB and its header go in one; larger frames
// gain nothing and hold more memory.
inline constexpr int kFrameBytes = (1 << 20) + (64 << 10);
// Largest message of any kind: a frame and its overhead, 65536 keys, a list of namespaces.
inline constexpr int kMaxMessageBytes = 8 << 20;

}  // namespace cairn::wire
