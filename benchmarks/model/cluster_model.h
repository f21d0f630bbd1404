#pragma once
// Several workers, a router, and what came of the requests.

#include <cstddef>
#include <string>
#include <vector>

#include "benchmarks/model/requests.h"
#include "benchmarks/model/worker_model.h"

namespace cairn::simulated {

struct ClusterOptions {
  size_t workers = 4;
  WorkerOptions worker = {};
  std::vector<double> speeds = {};  // The speed of each worker, over worker.speeds. Empty: all 1.
  // A policy of the router, or a rule of others (foreign_rules.h).
  std::string policy = "cost";
  size_t routers = 1;                  // Requests go to them in turn. They share only the reports.
  double router_max_wait_seconds = 0;  // 0: routers shed nothing.
  double report_seconds = 0.1;
  // Workers report nothing and do not say what they hold: a router knows what it sent them and what
  // came back, as of engines of others (services/router/relay).
  bool engines = false;
};

struct Outcome {
  std::vector<double> ttft;  // Seconds, of answered requests.
  size_t refused = 0;
  double tokens_per_second = 0;  // Generated ones, from the first arrival to the last one.
  double hit_share = 0;          // The share of prompt tokens.

  double mean() const;
  // share: 0 to 1.
  double percentile(double share) const;
};

// Plays all requests. `tenant`: whose requests the times are of. Empty: everybody's.
Outcome Play(const std::vector<Request>& requests, const ClusterOptions& options,
             const std::string& tenant = {});

// The work of the requests without any hit, over what the workers could do meanwhile.
double LoadOf(const std::vector<Request>& requests, const WorkerSpeeds& speeds, size_t workers);

}  // namespace cairn::simulated
