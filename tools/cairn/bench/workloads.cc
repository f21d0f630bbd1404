#include "tools/cairn/bench/workloads.h"

namespace cairn::cli::bench {

std::unique_ptr<Workload> NewWorkload(const BenchOptions& options) {
  switch (options.workload) {
    case WorkloadKind::kGet:
      return NewGet(options);
    case WorkloadKind::kPut:
      return NewPut(options);
    case WorkloadKind::kExists:
      return NewExists(options);
    case WorkloadKind::kMatch:
      return NewMatch(options);
    case WorkloadKind::kDisk:
      return NewDisk(options);
    case WorkloadKind::kPrefetch:
      return NewPrefetch(options);
    case WorkloadKind::kSessions:
      return NewSessions(options);
    case WorkloadKind::kTtft:
      return NewTtft(options);
  }
  return nullptr;
}

}  // namespace cairn::cli::bench
