#pragma once
// A trace of requests that people made, as prompts of keys.

#include <cstdint>
#include <string>
#include <vector>

#include "cairn/common/namespace_spec.h"
#include "cairn/common/status.h"

namespace cairn::bench {

// Tokens of a block of the trace, and of a block of ours.
inline constexpr uint32_t kTraceTokens = 512, kBlockTokens = 64;

// The first `requests` of the trace (tests/data/traces/README.md), each the keys of its full
// blocks. Prompts that begin with the same blocks of the trace begin with the same keys.
Result<std::vector<std::vector<BlockKey>>> ReadTrace(const std::string& path, size_t requests);

}  // namespace cairn::bench
