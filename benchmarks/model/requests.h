#pragma once
// Requests of a trace, as the model plays them.

#include <cstdint>
#include <string>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::simulated {

// Tokens of a block of the trace.
inline constexpr int64_t kTraceBlock = 512;

struct Request {
  double arrival = 0;  // Seconds since the first one.
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  std::vector<uint64_t> blocks;  // One number for each block of the input; the last may be partial.
  std::string tenant = "default";
};

// The first `count` requests of the file (tests/data/traces/README.md), 0: all of them. Arrivals
// are spread evenly over the trace's stamps, which are seconds apart. INVALID_ARGUMENT names line
// and field.
Result<std::vector<Request>> ReadRequests(const std::string& path, size_t count);

// The same requests, `factor` times as fast.
std::vector<Request> SpedUp(std::vector<Request> requests, double factor);

}  // namespace cairn::simulated
