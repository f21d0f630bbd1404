#include "common/net/unix_path.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace cairn::net {

Status FreeUnixPath(const std::string& path) {
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof at.sun_path) {
    return InvalidArgument("'{}': got {} characters, expected 1 to {}", path, path.size(),
                           sizeof at.sun_path - 1);
  }
  path.copy(at.sun_path, path.size());
  struct stat there {};
  if (lstat(path.c_str(), &there) != 0) return OkStatus();  // Whoever binds says what is wrong.
  if (!S_ISSOCK(there.st_mode)) {
    return Errorf(StatusCode::kFailedPrecondition, "'{}': there is a file that is not a socket",
                  path);
  }
  // Not blocking: the queue of a process that is busy may be full.
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) {
    return Errorf(StatusCode::kResourceExhausted, "'{}': socket: {}", path, std::strerror(errno));
  }
  const int refused =
      connect(probe, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0 ? 0 : errno;
  close(probe);
  switch (refused) {
    case ENOENT:
      return OkStatus();
    case ECONNREFUSED:  // Nobody has it: its process was killed.
      unlink(path.c_str());
      return OkStatus();
    case EACCES:
    case EPERM:
      return Errorf(StatusCode::kFailedPrecondition, "'{}': a socket of another user: {}", path,
                    std::strerror(refused));
    default:  // Also of another type, or with a full queue: somebody has it.
      return Errorf(StatusCode::kFailedPrecondition, "another process listens at '{}'", path);
  }
}

}  // namespace cairn::net
