#pragma once
// The rules by which routers of others pick a worker, to compare with. Each gets numbers that are
// exact and of this moment, which the real routers do not have.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/model/worker_model.h"
#include "services/router/policy/policy.h"

namespace cairn::simulated {

// "sglang": SGLang's cache_aware. If the most requests at a worker exceed the least by more than 64
//     and by more than 1.5 times, the least requests. Otherwise the longest match if it is above .3
//     of the prompt, else the least requests.
// "dynamo": NVIDIA Dynamo's KV router, weight 1. Least prefill blocks (of all that waits there and
//     of this request's rest) plus blocks of all requests there with this one.
// "llm-d":  Greatest sum of scores 0 to 1: 3 x share of the prompt that matches, 2 x (most waiting
//     - waiting) / (most - least), 2 x free share of the KV memory.
// "least_ttft": max(queue, fetch) + work. The cost without those whom the work delays.
//
// `facts`: one for each worker, in the order of the workers; must outlive the policy. Null: no such
// rule.
std::unique_ptr<router::Policy> MakeForeignRule(std::string_view name,
                                                const std::vector<WorkerFacts>* facts);

}  // namespace cairn::simulated
