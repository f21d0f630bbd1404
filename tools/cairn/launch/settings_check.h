#pragma once
// Finds wrong settings of nodes, workers and the router before anything starts.

#include <string>

#include "cairn/common/status.h"
#include "tools/cairn/launch/plan.h"

namespace cairn::cli {

// Asks one program of each role whether it would take its command line (--check-config).
// INVALID_ARGUMENT with what the first one says that would not. `data`: a node's directory, which
// need not exist.
Status CheckSettings(const LaunchPlan& plan, const std::string& data);

}  // namespace cairn::cli
