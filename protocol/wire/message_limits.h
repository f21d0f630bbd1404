#pragma once
// Sizes of messages that both ends of a connection must agree on.

namespace cairn::wire {

// The largest frame of Push, unless the node says otherwise. A block of 1 MiB and its header fit
// into one frame. Larger frames are not faster and hold more memory.
inline constexpr int kFrameBytes = (1 << 20) + (64 << 10);
// The largest message of any kind: a frame and its overhead, 65536 keys, or a list of namespaces.
inline constexpr int kMaxMessageBytes = 8 << 20;

}  // namespace cairn::wire
