#pragma once
// Traces of requests without their texts, as tests/data/traces/README.md describes them.

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "cairn/common/next_use.h"
#include "cairn/common/status.h"

namespace cairn::cli::replay {

struct TraceRequest {
  double seconds = 0;  // Since the first request of the trace.
  uint32_t input_tokens = 0;
  // One number for each block of the input; the last block may be shorter. Equal numbers are equal
  // blocks after equal beginnings.
  std::vector<uint32_t> blocks;
  NextUse next = NextUse::kUnknown;
};

struct Trace {
  std::vector<TraceRequest> requests;
  uint32_t block_tokens = 0;
  uint32_t distinct_blocks = 0;  // Blocks have the numbers below this.
  uint64_t blocks = 0;           // The blocks of all requests.
  uint64_t tokens = 0;

  // The tokens of block `at` of a request.
  uint32_t TokensOf(const TraceRequest& request, size_t at) const {
    const uint64_t begin = uint64_t{block_tokens} * at;
    return static_cast<uint32_t>(std::min<uint64_t>(block_tokens, request.input_tokens - begin));
  }
};

// One JSON object per line. Requests of one time stamp are spread evenly until the next one: traces
// round their stamps. INVALID_ARGUMENT names `name`, the line, the field and what was expected:
// times that fall, lengths that do not fit the number of blocks, a block after two different ones.
Result<Trace> ReadTrace(std::istream& in, const std::string& name, uint32_t block_tokens);

// Says of `percent` of the requests what their conversations do next, from the future of the trace:
// soon (within 900 s), later or never.
void AddHints(Trace* trace, uint32_t percent);

}  // namespace cairn::cli::replay
