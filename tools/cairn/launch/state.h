#pragma once
// The processes that `cairn up` has started, as a file of its directory lists them.

#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"
#include "tools/cairn/process/identity.h"

namespace cairn::cli {

// In the order in which they start. They end in the opposite one.
enum class Role { kNode, kWorker, kRouter };
std::string_view Name(Role role);  // "node", "worker", "router".

struct LaunchedProcess {
  Role role = Role::kNode;
  // "node-1", "worker-2", "prefill-1" (a worker, too), "router": of its log, too.
  std::string name = {};
  ProcessIdentity identity = {};
  // HOST:PORT. Empty until it serves; `http` only of the router.
  std::string grpc = {}, admin = {}, http = {};
  bool operator==(const LaunchedProcess&) const = default;
};

struct LaunchState {
  std::string boot_id = {};  // BootId() at the start.
  std::string model = {};    // Path of the model file.
  bool made_directory = false;
  std::vector<LaunchedProcess> processes = {};
  bool operator==(const LaunchState&) const = default;
};

// Whether `up` gives this name to a process: nothing else may be part of a path.
bool IsLaunchName(std::string_view name);

std::string LaunchStateText(const LaunchState& state);
// Everybody may write a file: INVALID_ARGUMENT names the field that is wrong, the value, and what
// was expected. A state that it accepts holds no name that leaves the directory and no control
// characters.
Result<LaunchState> ParseLaunchState(std::string_view text);

}  // namespace cairn::cli
