#include "tools/cairn/process/cache_node.h"

#include <filesystem>

#include "tools/cairn/process/programs.h"

namespace cairn::cli {

Result<CacheNodeProcess> StartCacheNode(const CacheNodeOptions& options) {
  std::vector<std::string> argv = {SiblingProgram("cairn-cache"),
                                   "--listen",
                                   options.address,
                                   "--admin.listen",
                                   "127.0.0.1:0",
                                   "--host.capacity",
                                   std::to_string(options.host_bytes)};
  if (!options.disk_directory.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options.disk_directory, error);
    if (error) {
      return Errorf(StatusCode::kInternal, "cannot make '{}': {}", options.disk_directory,
                    error.message());
    }
    argv.insert(argv.end(), {"--disk.path", options.disk_directory});
    if (options.disk_bytes > 0) {
      argv.insert(argv.end(), {"--disk.capacity", std::to_string(options.disk_bytes)});
    }
  }
  argv.insert(argv.end(), options.settings.begin(), options.settings.end());
  CacheNodeProcess node;
  CAIRN_ASSIGN_OR_RETURN(
      node.child,
      Child::Start({.name = "cairn-cache", .argv = argv, .log_path = options.log_path}));
  // Opening a large disk tier takes seconds.
  CAIRN_ASSIGN_OR_RETURN(const auto ready, node.child->WaitReady(std::chrono::seconds(60)));
  const auto address = ready.find("grpc");
  if (address == ready.end()) {
    return Errorf(StatusCode::kInternal, "cairn-cache does not say where it listens");
  }
  node.address = address->second;
  return node;
}

}  // namespace cairn::cli
