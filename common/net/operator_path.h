#pragma once
// Where the sockets of a user's processes are: a folder that only this user can put names into.
// Otherwise somebody else could listen there first.

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "cairn/common/status.h"

namespace cairn::net {

// $XDG_RUNTIME_DIR if it is set and writable. Otherwise cairn-<uid> in the folder for temporary
// files, which is made if `make` is set. FAILED_PRECONDITION, which names `field`: there is none,
// or others can write to it.
inline Result<std::string> RuntimeFolder(const std::string& field, bool make) {
  if (const char* const folder = std::getenv("XDG_RUNTIME_DIR");
      folder != nullptr && *folder != '\0' && access(folder, W_OK) == 0) {
    return std::string(folder);
  }
  std::error_code error;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  if (error) {
    return Errorf(StatusCode::kFailedPrecondition, "{}: no folder for temporary files: {}", field,
                  error.message());
  }
  const std::string folder = temporary / fmt::format("cairn-{}", getuid());
  if (make && mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return Errorf(StatusCode::kFailedPrecondition, "{}: folder '{}': {}", field, folder,
                  std::strerror(errno));
  }
  struct stat there {};
  if (lstat(folder.c_str(), &there) != 0 || !S_ISDIR(there.st_mode) || there.st_uid != getuid() ||
      (there.st_mode & 022) != 0) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "{}: '{}' is not a folder that only user {} can write to", field, folder,
                  getuid());
  }
  return folder;
}

// The socket for operators of the process that serves `port`.
inline std::string OperatorSocketIn(const std::string& folder, int port) {
  return fmt::format("{}/cairn-{}-admin.sock", folder, port);
}

}  // namespace cairn::net
