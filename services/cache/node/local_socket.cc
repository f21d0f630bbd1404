#include "services/cache/node/local_socket.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "common/config/config.h"

namespace cairn::cache {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// A folder that only this user can put names into: else somebody could listen there before us.
Result<std::string> RuntimeFolder() {
  if (std::string folder = Environment("XDG_RUNTIME_DIR");
      !folder.empty() && access(folder.c_str(), W_OK) == 0) {
    return folder;
  }
  std::error_code error;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  if (error) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "local.socket: no folder for temporary files: {}", error.message());
  }
  const std::string folder = temporary / fmt::format("cairn-{}", getuid());
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return Errorf(StatusCode::kFailedPrecondition, "local.socket: folder '{}': {}", folder,
                  std::strerror(errno));
  }
  struct stat there {};
  if (lstat(folder.c_str(), &there) != 0 || !S_ISDIR(there.st_mode) || there.st_uid != getuid() ||
      (there.st_mode & 022) != 0) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "local.socket: '{}' is not a folder that only user {} can write to", folder,
                  getuid());
  }
  return folder;
}

}  // namespace

Result<std::unique_ptr<LocalServer>> StartLocalServer(const NodeConfig& config, int port,
                                                      const LocalServer::Dependencies& dependencies,
                                                      uint64_t node_epoch) {
  LocalServerOptions options;
  options.path = config.local_socket;
  if (options.path == "auto") {
    CAIRN_ASSIGN_OR_RETURN(const std::string folder, RuntimeFolder());
    // A data port that is itself a Unix socket has no number.
    options.path = port > 1 ? fmt::format("{}/cairn-{}.sock", folder, port)
                            : fmt::format("{}/cairn-pid{}.sock", folder, getpid());
  }
  // A file's mode cannot name several users: the ids of those who connect are checked instead.
  options.mode = config.local_allow_uids.empty() ? 0600 : 0666;
  for (const std::string& uid : config.local_allow_uids)
    options.allow_uids.push_back(static_cast<uid_t>(std::stoul(uid)));
  options.ring.scratch_bytes = static_cast<uint32_t>(config.local_scratch);
  options.require_tenant = config.local_require_tenant;
  options.quota_bytes = config.local_session_quota;
  options.max_sessions = config.engine.max_sessions;
  if (config.local_spin != "auto") {
    CAIRN_ASSIGN_OR_RETURN(options.spin, config::ParseDuration(config.local_spin));
  }
  options.node_epoch = node_epoch;
  return LocalServer::Start(options, dependencies);
}

}  // namespace cairn::cache
