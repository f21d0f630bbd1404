#pragma once
// How what `cairn up` started ends.

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tools/cairn/launch/state.h"
#include "tools/cairn/output/progress.h"

namespace cairn::cli {

struct EndReport {
  size_t ended = 0;                 // In order, after SIGTERM.
  std::vector<std::string> killed;  // Did not end in time.
  std::vector<std::string> gone;    // Had ended before.
};

// Ends router, workers and nodes in this order, so that each can still reach what it needs. Each
// role has `limit` to end its requests; then SIGKILL. Removes the sockets of processes that could
// not do so themselves.
EndReport EndAll(const LaunchState& state, std::chrono::milliseconds limit, Progress& progress);

// The processes of `state` that run now, by name.
std::vector<std::string> Running(const LaunchState& state);

// Returns when all have ended, or after Ctrl-C. `on_end` hears of each that ends.
void WatchUntilInterrupted(const LaunchState& state,
                           const std::function<void(const LaunchedProcess&)>& on_end);

}  // namespace cairn::cli
