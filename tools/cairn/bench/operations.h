#pragma once
// Many threads that do the same operation, each waiting for its answer: `threads` calls in flight.

#include <cstdint>
#include <functional>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::cli::bench {

struct Operations {
  Status status;       // The first error; then the rest means nothing.
  uint32_t done = 0;   // Operations 0 to done - 1 were done.
  double seconds = 0;  // From the first one's begin to the last one's end.
  std::vector<double> latencies_us;
};

// Calls operation(thread, i) for i = 0, 1, ... up to `most`, until `seconds` have passed or one
// fails. At least one is done.
Operations RunOperations(uint32_t threads, uint32_t most, double seconds,
                         const std::function<Status(uint32_t thread, uint32_t i)>& operation);

}  // namespace cairn::cli::bench
