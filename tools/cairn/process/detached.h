#pragma once
// A process that goes on when this one ends.

#include <chrono>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"
#include "tools/cairn/process/identity.h"

namespace cairn::cli {

struct DetachedOptions {
  std::string name;               // For messages.
  std::vector<std::string> argv;  // argv[0] is the path of the program.
  std::string log_path;           // stdout and stderr are appended here.
};

// Move-only, not thread-safe.
struct DetachedProcess {
  std::string name;
  ProcessIdentity identity;
  ProcessHandle handle;
  std::string log_path;
};

// Starts a program in a session of its own, so that neither Ctrl-C nor the end of a terminal
// reaches it. The program runs only after `record` has returned OK: whoever records the identity on
// disk can never lose the process, also if this process is killed at any moment.
// NOT_FOUND: there is no such program. Errors of `record`.
Result<DetachedProcess> StartDetached(const DetachedOptions& options,
                                      const std::function<Status(const ProcessIdentity&)>& record);

// Waits until each has written its ready line (ParseReadyLine) to its log, and returns the fields,
// in the order of `processes`. `on_ready` hears of each one's index. Errors: UNAVAILABLE, one ended
// first; DEADLINE_EXCEEDED; both with its name and the end of its log. CANCELLED after Ctrl-C.
Result<std::vector<std::map<std::string, std::string>>> WaitAllReady(
    std::span<const DetachedProcess> processes, std::chrono::milliseconds timeout,
    const std::function<void(size_t)>& on_ready);

}  // namespace cairn::cli
