#pragma once
// The path of a Unix socket that a process wants to listen at.

#include <string>

#include "cairn/common/status.h"

namespace cairn::net {

// Makes `path` free to be bound, and removes the socket of a process that was killed. Every
// listener of ours calls it first: bind itself, or a library around it, would take the path from a
// process that listens there, and that process could be reached by nobody, alive as it is.
//
// FAILED_PRECONDITION, naming the path: another process listens there, or may; or there is a file
// that is not a socket.
Status FreeUnixPath(const std::string& path);

}  // namespace cairn::net
