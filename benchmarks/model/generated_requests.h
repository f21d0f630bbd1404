#pragma once
// Requests that are made up, for policies that were tuned on a trace.

#include <cstdint>
#include <string_view>
#include <vector>

#include "benchmarks/model/requests.h"

namespace cairn::simulated {

// "agents":    conversations of up to 20 steps, 4 s apart, each 1,000 to 3,000 tokens longer, after
//              one of 8 system prompts of 4,096 tokens.
// "documents": questions of 200 to 800 tokens about 400 documents of 4,000 to 40,000 tokens, by
//              Zipf's law.
// "bursts":    conversations of up to 6 turns that begin in bursts: 30 s at eight times the rate of
//              the minute that follows.
// An hour of requests, as arrivals of the seed. They are sped up to the load that is wanted.
std::vector<Request> GenerateRequests(std::string_view kind, uint64_t seed);

}  // namespace cairn::simulated
