#pragma once
// Which worker gets a request. A policy sees numbers and answers with a number.

#include <cstddef>
#include <functional>
#include <random>
#include <span>

namespace cairn::model {

// What a router knows of a worker, for one request.
struct WorkerView {
  // Of prompts before this one: what the worker reported, and what this router sent it since.
  double queue_seconds = 0;
  double fetch_seconds = 0;  // Until what the worker can fetch of the prompt is there.
  double work_seconds = 0;   // Prefill of the rest, and what its decodes cost others.
};

// What a router knows of all of them.
struct ClusterView {
  std::span<const WorkerView> workers;
  double arrivals_per_second = 0;  // Over the last minute.
  double utilization = 0;          // Measured use, 0 to 1, over the last minute.
};

// Answers an index into the workers.
using Route = std::function<size_t(const ClusterView& cluster, std::mt19937_64& random)>;

// The seconds until the answer begins, and those that the request adds to others behind it: the
// lowest sum wins, ties at random.
size_t CostRule(const ClusterView& cluster, std::mt19937_64& random);

}  // namespace cairn::model
