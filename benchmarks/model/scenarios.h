#pragma once
// The parts that the scenarios of scheduling_model share.

#include <string>
#include <vector>

#include "benchmarks/model/cluster_model.h"
#include "benchmarks/model/requests.h"

namespace cairn::simulated {

// A figure and what it is compared with.
struct Row {
  std::string name;
  double value = 0;
  std::string unit;
  double yardstick = 0;
  double ratio = 0;  // More is better.
};

// The results of one policy with one trace at one load. Seconds.
struct PolicyRun {
  std::string scenario, policy;
  double load = 0;
  double p50 = 0, p90 = 0, p99 = 0, mean = 0;
  double hit_share = 0, tokens_per_second = 0;
  size_t refused = 0;
};

struct Report {
  std::vector<Row> rows;
  std::vector<PolicyRun> runs;
};

// The requests, sped up so that workers of the usual speed have this load.
std::vector<Request> AtLoad(const std::vector<Request>& requests, double load, size_t workers);

// For people.
std::string Line(const Outcome& outcome);

// Four workers under all policies of the router and under the rules of others.
void CompareRouting(const std::vector<Request>& requests, Report* report);
// Four routers against one.
void CompareReplicas(const std::vector<Request>& requests, Report* report);
// A router that sheds, at twice the saturating load.
void CompareShedding(const std::vector<Request>& requests, Report* report);
// Workers of different speeds.
void CompareUnequal(const std::vector<Request>& requests, Report* report);
// The same as CompareRouting, with workers that compute first in first out.
void CompareFirstInFirstOut(const std::vector<Request>& requests, Report* report);
// The same workers when they report nothing, as engines of others.
void CompareEngines(const std::vector<Request>& requests, Report* report);
// Requests that nothing was tuned on (generated_requests.h).
void CompareGenerated(const std::vector<Request>& requests, Report* report);

}  // namespace cairn::simulated
