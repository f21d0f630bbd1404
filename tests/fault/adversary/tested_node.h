#pragma once
// The node under test: a real cairn-cache with a limit on its memory, which is watched all the
// time, and which comes back at the same address when it dies or is told to restart.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "tests/support/process.h"

namespace cairn::fault {

// Flags of a node in which everything fills up in seconds.
const std::vector<std::string>& SmallNodeArgs();
// Forgets all tenants but the honest ones, whose names begin with "honest-".
void DropHostileTenants(const std::string& address);

// Thread-safe.
class TestedNode {
 public:
  struct Options {
    std::string directory;                      // For the disk tier and the socket.
    std::vector<std::string> args = {};         // Flags of the node.
    uint64_t address_space_bytes = 4ull << 30;  // The process gets no more.
    uint64_t descriptors = 1024;                // Nor more of these.
  };
  static Result<std::unique_ptr<TestedNode>> Start(const Options& options);
  ~TestedNode();

  const std::string& address() const { return address_; }
  const std::string& admin() const { return admin_; }

  // SIGKILL, or SIGTERM and a wait for the end, and then a start with these flags added (only this
  // time). What fails meanwhile counts against nobody. An error: the node did not end with code 0,
  // or did not start.
  Status Restart(bool kill, const std::vector<std::string>& more_args = {});
  // SIGTERM for good.
  Status Stop();

  // Nobody reads the node's log from now on, as when a log collector hangs. Reading again takes up
  // what waits.
  void StopReadingLog(bool stop) { log_is_stuck_.store(stop); }

  // True when the node was away on purpose at some time in [begin, end], or came back less than a
  // moment before.
  bool WasAwayOnPurpose(TimePoint begin, TimePoint end) const;
  // How often the node died although nobody wanted it; it was started again each time. `why` has
  // the end of its log.
  uint64_t deaths() const;
  std::string last_death() const;
  // The largest resident set of all its lives, in bytes.
  uint64_t peak_bytes() const { return peak_bytes_.load(); }
  uint64_t open_descriptors() const;

 private:
  explicit TestedNode(Options options) : options_(std::move(options)) {}
  // Only the keeper's thread launches: a child dies with the thread that made it.
  Status Launch(const std::vector<std::string>& more_args) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status End(bool kill) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Measure() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status RestartNow(bool kill, const std::vector<std::string>& more_args)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Runs it in the keeper's thread and waits for its end.
  Status InKeeper(std::function<Status()> job);
  void ReadLog();
  void Keep();
  std::string EndOfLog() const;

  const Options options_;
  std::string address_, admin_;
  std::atomic<bool> done_{false};
  std::atomic<bool> log_is_stuck_{false};
  std::atomic<uint64_t> peak_bytes_{0};
  std::atomic<pid_t> pid_{-1};
  int log_read_ = -1, log_write_ = -1;

  mutable Mutex jobs_mu_;
  CondVar jobs_changed_;
  std::function<Status()> job_ ABSL_GUARDED_BY(jobs_mu_);  // Set: waits for the keeper.
  bool job_done_ ABSL_GUARDED_BY(jobs_mu_) = false;
  Status job_result_ ABSL_GUARDED_BY(jobs_mu_);
  Mutex callers_mu_;  // One job at a time.

  mutable Mutex mu_;
  std::unique_ptr<testing::Process> process_ ABSL_GUARDED_BY(mu_);

  mutable Mutex notes_mu_;
  struct Away {
    TimePoint begin;
    TimePoint end;
  };
  std::vector<Away> away_ ABSL_GUARDED_BY(notes_mu_);
  uint64_t deaths_ ABSL_GUARDED_BY(notes_mu_) = 0;
  std::string last_death_ ABSL_GUARDED_BY(notes_mu_);
  std::string log_ ABSL_GUARDED_BY(notes_mu_);  // Its end.

  std::thread log_reader_, keeper_;
};

}  // namespace cairn::fault
