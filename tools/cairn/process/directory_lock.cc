#include "tools/cairn/process/directory_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace cairn::cli {

Result<std::unique_ptr<DirectoryLock>> DirectoryLock::Take(const std::string& directory,
                                                           const std::string& who) {
  const std::string name = directory + "/" + kFile;
  const int fd = open(name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) {
    return Errorf(StatusCode::kFailedPrecondition, "cannot write to '{}': {}", directory,
                  std::strerror(errno));
  }
  // Not flock: a child that has not begun its own program yet would hold that, too, after a parent
  // that was killed.
  struct flock whole {
    .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 0, .l_pid = 0
  };
  struct stat locked {};
  struct stat named {};
  // The one who had the lock may have removed its file: then nobody else sees this lock.
  const bool held = fcntl(fd, F_SETLK, &whole) == 0 && fstat(fd, &locked) == 0 &&
                    stat(name.c_str(), &named) == 0 && locked.st_ino == named.st_ino;
  if (!held) {
    close(fd);
    return Errorf(StatusCode::kFailedPrecondition, "{} works in '{}' now", who, directory);
  }
  return std::unique_ptr<DirectoryLock>(new DirectoryLock(fd));
}

DirectoryLock::~DirectoryLock() { close(fd_); }

}  // namespace cairn::cli
