#pragma once
// TCP congestion control of a listening port.

#include <string>

#include "cairn/common/status.h"

namespace cairn::net {

// What sends on connections to the port that this process listens on: "bbr", "cubic", ... `wanted`
// not empty: set first, for connections from now on (accepted sockets inherit it). "auto": cubic or
// reno in the place of bbr, anything else stays. gRPC offers no way to its listening socket, so the
// process's descriptors are searched. INVALID_ARGUMENT naming `field` when the kernel does not have
// it; NOT_FOUND when nothing here listens on the port.
Result<std::string> ListenerCongestionControl(int port, const std::string& wanted,
                                              const std::string& field);

}  // namespace cairn::net
