#pragma once
// A process under test: a real node, worker or router with a limit on its memory, which is watched
// all the time, and which comes back at the same address when it dies or is told to restart.

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

// Thread-safe.
class TestedServer {
 public:
  struct Options {
    std::string program = "cairn-cache";        // A program that takes --listen and --admin.listen.
    std::string address = {};                   // Where it listens. Empty: a free port.
    std::vector<std::string> args = {};         // Its other flags.
    uint64_t address_space_bytes = 4ull << 30;  // The process gets no more.
    uint64_t descriptors = 1024;                // Nor more of these.
  };
  static Result<std::unique_ptr<TestedServer>> Start(const Options& options);
  ~TestedServer();

  const std::string& program() const { return options_.program; }
  const std::string& address() const { return address_; }
  const std::string& admin() const { return admin_; }

  // SIGKILL, or SIGTERM and a wait for the end, and then a start with these flags added (only this
  // time). What fails meanwhile counts against nobody. An error: it did not end with code 0, or did
  // not start.
  Status Restart(bool kill, const std::vector<std::string>& more_args = {});
  // SIGTERM for good.
  Status Stop();

  // Nobody reads its log from now on, as when a log collector hangs. Reading again takes up
  // what waits.
  void StopReadingLog(bool stop) { log_is_stuck_.store(stop); }

  // True when it was away on purpose at some time in [begin, end], or came back less than a
  // moment before.
  bool WasAwayOnPurpose(TimePoint begin, TimePoint end) const;
  // How often it died although nobody wanted it; it was started again each time. `why` has
  // the end of its log.
  uint64_t deaths() const;
  std::string last_death() const;
  // The largest resident set of all its lives, in bytes.
  uint64_t peak_bytes() const { return peak_bytes_.load(); }
  uint64_t open_descriptors() const;

 private:
  explicit TestedServer(Options options)
      : options_(std::move(options)), address_(options_.address) {}
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
