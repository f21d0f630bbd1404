#pragma once
// A cairn-cache of our own, as a child process on loopback.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "tools/cairn/process/child.h"

namespace cairn::cli {

struct CacheNodeOptions {
  std::string address = "127.0.0.1:0";  // Port 0: a free one.
  uint64_t host_bytes = 0;
  std::string disk_directory;  // Empty: no disk tier. Made if missing.
  uint64_t disk_bytes = 0;     // 0: the node's default.
  std::string log_path;
  std::vector<std::string> settings = {};  // More flags: "--disk.direct_io", "false", ...
};

struct CacheNodeProcess {
  std::unique_ptr<Child> child;
  std::string address;  // Where it really listens.
};

// Ready to serve. Errors of Child::Start and WaitReady.
Result<CacheNodeProcess> StartCacheNode(const CacheNodeOptions& options);

}  // namespace cairn::cli
