#pragma once
// Traces of requests for tests of placement, made from a seed: workloads that no parameter was
// tuned on. An hour of some 8,000 requests each, in blocks of 512 tokens.

#include <cstdint>
#include <string>
#include <vector>

#include "tools/cairn/replay/trace.h"

namespace cairn::testing {

struct GeneratedTrace {
  std::string name;
  cli::replay::Trace trace;
};

// Chats; agents whose steps follow each other after 4 s; questions about documents of Zipf's
// popularity; one-off prompts of a batch next to chats; chats, and then agents; all of them mixed.
std::vector<GeneratedTrace> GenerateTraces(uint64_t seed);

}  // namespace cairn::testing
