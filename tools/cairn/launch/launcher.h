#pragma once
// Starts nodes, workers and a router, each role when the one before serves.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "tools/cairn/launch/directory.h"
#include "tools/cairn/launch/plan.h"
#include "tools/cairn/launch/state.h"
#include "tools/cairn/output/progress.h"
#include "tools/cairn/process/detached.h"

namespace cairn::cli {

// The answers of processes about themselves. Any error means not yet, and says why. One
// thread.
class LaunchProbes {
 public:
  virtual ~LaunchProbes() = default;
  // The admin port's /readyz.
  virtual Status Ready(const std::string& admin) = 0;
  // Whether the nodes are one cluster of which each member knows all others.
  virtual Status Whole(const std::vector<std::string>& nodes) = 0;
  // Whether the worker has a session with its node.
  virtual Status HasCache(const std::string& worker) = 0;
};

// Not thread-safe.
class Launcher {
 public:
  // All must outlive it. `limit`: for each role to serve.
  Launcher(const LaunchPlan& plan, const LaunchDirectory& directory, LaunchProbes& probes,
           Progress& progress, std::chrono::milliseconds limit, LaunchState state);

  // Returns when all serve. On an error, which names the process and shows the end of its log, what
  // runs is in state() and in the directory, for EndAll. CANCELLED after Ctrl-C.
  Status Run();
  const LaunchState& state() const { return state_; }

 private:
  struct Program {
    Role role = Role::kNode;
    std::string name;
    std::vector<std::string> argv;
  };
  Status StartNodes();
  Status StartWorkers();
  Status StartRouter();
  // Takes a router that has ended out of what was started. False: it runs, or there is none.
  bool ForgetEndedRouter();
  Status StartAll(const std::vector<Program>& programs);
  Status WaitReady(size_t begin);  // Waits for the processes from there on.
  // Until `probe` says OK. Its errors until then are shown, and why it took too long.
  Status Await(const std::function<Status()>& probe, const std::string& what);
  std::vector<std::string> AddressesOf(Role role) const;

  const LaunchPlan& plan_;
  const LaunchDirectory& directory_;
  LaunchProbes& probes_;
  Progress& progress_;
  const std::chrono::milliseconds limit_;
  LaunchState state_;
  std::vector<DetachedProcess> started_;  // In addition to state_.processes.
};

}  // namespace cairn::cli
