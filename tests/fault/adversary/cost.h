#pragma once
// What a hostile client costs an honest one, against a second honest client in its place.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cairn/common/status.h"
#include "tests/fault/adversary/recipes.h"
#include "tests/fault/adversary/stage.h"

namespace cairn::fault {

// Of one recipe at one port, each with the median of the rounds.
struct Cost {
  std::string recipe, port;
  double rate = 0;  // Honest calls a second, as a share of those beside a second honest client.
  double p99 = 0;   // Their 99th percentile, as a multiple of that.
  double rate_beside = 0;  // Calls a second beside a second honest client.
  double p99_beside_ms = 0;
  double success = 1;  // The worst round's.
};

struct CostReport {
  uint64_t seed = 0;
  std::vector<Cost> costs;
  std::string Text() const;
  std::string Json() const;
};

// The honest client has 8 calls in flight without pauses, and so has the second one, at the same
// port. Rounds with the recipe and rounds with the second client take turns. Recipes that run alone
// are left out: they stop honest clients or restart the node.
struct CostOptions {
  uint64_t seed = 1;
  double round_seconds = 2;
  int rounds = 3;
  std::vector<const Recipe*> recipes = {};
  std::string port = {};  // Empty: all ports, one after the other.
  bool quiet = false;     // No progress on stdout.
};
// An error: a server died, or did not end.
Result<CostReport> MeasureCosts(Stage* stage, const CostOptions& options);

}  // namespace cairn::fault
