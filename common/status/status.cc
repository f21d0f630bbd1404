#include "cairn/common/status.h"

#include <cstdio>
#include <cstdlib>

namespace cairn {

Status Annotate(const Status& status, const std::string& context) {
  if (status.ok()) return status;
  return Status(status.code(), context + ": " + Message(status));
}

namespace internal {
void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}
}  // namespace internal

}  // namespace cairn
