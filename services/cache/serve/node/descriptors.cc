#include "services/cache/serve/node/descriptors.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace cairn::cache {
namespace {

// The threads' event queues, the database, some value files and some dozen connections.
constexpr rlim_t kFewest = 128;

}  // namespace

Status CheckDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return Errorf(StatusCode::kFailedPrecondition, "getrlimit(RLIMIT_NOFILE): {}",
                  std::strerror(errno));
  }
  if (limit.rlim_max < kFewest) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "file descriptors: the hard limit (ulimit -Hn) is {}, expected at least {}",
                  limit.rlim_max, kFewest);
  }
  return OkStatus();
}

Status RaiseDescriptorLimit() {
  CAIRN_RETURN_IF_ERROR(CheckDescriptorLimit());
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);  // The soft limit stays as it is.
  return OkStatus();
}

}  // namespace cairn::cache
