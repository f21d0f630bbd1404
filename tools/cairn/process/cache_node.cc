#include "tools/cairn/process/cache_node.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "tools/cairn/process/programs.h"

namespace cairn::cli {

Result<std::vector<std::string>> FreeLoopbackAddresses(size_t count) {
  std::vector<int> sockets;  // All stay open until the last one is chosen: no port comes twice.
  std::vector<std::string> addresses;
  int error = 0;
  while (addresses.size() < count && error == 0) {
    const int fd = sockets.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    const bool found = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                       getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
    if (!found) error = errno;
    addresses.push_back(fmt::format("127.0.0.1:{}", ntohs(address.sin_port)));
  }
  for (const int fd : sockets) {
    if (fd >= 0) close(fd);
  }
  if (error != 0) {
    return Errorf(StatusCode::kInternal, "no free port on loopback: {}", std::strerror(error));
  }
  return addresses;
}

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
  if (address == ready.end())
    return Errorf(StatusCode::kInternal, "cairn-cache does not say where it listens");
  node.address = address->second;
  return node;
}

}  // namespace cairn::cli
