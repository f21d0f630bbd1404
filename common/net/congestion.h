#pragma once
// TCP congestion control of a listening port.

#include <string>

#include "cairn/common/status.h"

namespace cairn::net {

// Returns the congestion control of connections to the port on which this process listens: "bbr",
// "cubic", ... If `wanted` is not empty, sets it first, for connections from now on (accepted
// sockets inherit it). "auto": replaces bbr by cubic or reno and keeps any other. gRPC does not
// give access to its listening socket, so this searches the descriptors of the process.
// INVALID_ARGUMENT, which names `field`: the kernel does not have the algorithm. NOT_FOUND: nothing
// in this process listens on the port.
Result<std::string> ListenerCongestionControl(int port, const std::string& wanted,
                                              const std::string& field);

}  // namespace cairn::net
