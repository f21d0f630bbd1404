#pragma once
// Which process a pid meant when it was written down. The kernel gives pids again, so a pid alone
// may later be somebody else's process.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::cli {

struct ProcessIdentity {
  pid_t pid = 0;
  uint64_t start_ticks = 0;  // When it started, in clock ticks since the machine did.
  bool operator==(const ProcessIdentity&) const = default;
};

// The id of the start of this machine: pids and ticks of another one mean nothing. "" when it is
// unknown.
std::string BootId();

// NOT_FOUND: no such process, or only its exit status is left.
Result<ProcessIdentity> IdentityOf(pid_t pid);

// A process that may be signalled without a doubt. Move-only, not thread-safe.
class ProcessHandle {
 public:
  // NOT_FOUND: it has ended. The pid may belong to another process now, which nothing here touches.
  static Result<ProcessHandle> Open(const ProcessIdentity& identity);
  ProcessHandle(ProcessHandle&& other) noexcept;
  ProcessHandle& operator=(ProcessHandle&& other) noexcept;
  ~ProcessHandle();

  // Readable once the process has ended.
  int fd() const { return fd_; }
  void Signal(int signal) const;
  // Takes the exit status of a child of ours, so that the kernel forgets it. As waitpid gives it; 0
  // for a process that is no child of ours. REQUIRES: it has ended.
  int Reap() const;

 private:
  explicit ProcessHandle(int fd) : fd_(fd) {}
  int fd_;
};

// Waits until all have ended. False: some still run when the time is over.
bool WaitEnded(const std::vector<ProcessHandle>& processes, std::chrono::milliseconds timeout);

}  // namespace cairn::cli
