#pragma once
// A child process that cannot outlive us.
//
// The kernel kills the child when our process dies, however it dies (PR_SET_PDEATHSIG); the
// destructor kills it in every other case. Its output goes to a log file. Children run in
// process groups of their own, so that Ctrl-C reaches only us and we decide what follows.

#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::cli {

// The line that servers print when they take requests: `ready grpc=HOST:PORT admin=HOST:PORT ...`.
// NOT_FOUND when it is no such line.
Result<std::map<std::string, std::string>> ParseReadyLine(std::string_view line);

// Not thread-safe. Start it on a thread that lives as long as the process: the death signal follows
// the thread.
class Child {
 public:
  struct Options {
    std::string name;               // For messages.
    std::vector<std::string> argv;  // argv[0] is the path of the program.
    std::string log_path;           // stdout and stderr are appended here.
  };

  // NOT_FOUND when the program does not exist; INTERNAL when it cannot be started.
  static Result<std::unique_ptr<Child>> Start(const Options& options);
  ~Child();  // Kill().
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // The fields of the ready line. DEADLINE_EXCEEDED, or UNAVAILABLE when the child ended before;
  // both with the end of its log.
  Result<std::map<std::string, std::string>> WaitReady(std::chrono::milliseconds timeout);

  pid_t pid() const { return pid_; }
  bool Running();

  // SIGKILL, and waits until the process is gone. Idempotent.
  void Kill();
  // SIGTERM, then SIGKILL after `timeout`. The exit status as waitpid gives it.
  int Stop(std::chrono::milliseconds timeout);

 private:
  class Output;
  Child(Options options, pid_t pid, int pidfd, std::unique_ptr<Output> output);
  void Reap();
  // True when the child has ended (and is reaped).
  bool WaitExit(std::chrono::milliseconds timeout);

  const Options options_;
  pid_t pid_;
  int pidfd_;
  int wait_status_ = 0;
  bool reaped_ = false;
  std::unique_ptr<Output> output_;
};

}  // namespace cairn::cli
