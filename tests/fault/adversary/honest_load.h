#pragma once
// Honest clients beside the hostile ones: what they saw, and the threads that run them.

#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/concurrency/mutex.h"
#include "tests/fault/adversary/tested_server.h"

namespace cairn::fault {

// What honest calls saw in some time.
struct HonestWindow {
  uint64_t calls = 0;
  uint64_t failed = 0;
  std::map<std::string, uint64_t> failures = {};  // Why, with a count.
  std::vector<double> milliseconds = {};          // Of each call, failed ones too.
  double longest_ms = 0;
  std::string slowest = {};  // Which call took longest.
  uint64_t read_blocks = 0;
  std::vector<std::string> wrong = {};  // Wrong bytes and answers. Must stay empty.

  double SuccessRate() const;
  // 0 <= quantile <= 1. 0 without a call.
  double Quantile(double quantile) const;
};

// What came of one honest call.
struct HonestCall {
  std::string what;          // For people.
  TimePoint begin;           // The call has just ended.
  std::string failure = {};  // Empty: it succeeded.
  std::vector<std::string> wrong = {};
  uint64_t blocks = 0;  // That were read.
};

// Takes what honest calls saw. Thread-safe.
class HonestNotes {
 public:
  virtual ~HonestNotes() = default;
  virtual void Note(HonestCall call) = 0;
};

class HonestBlocks;

// What an honest client does again and again. Thread-safe.
class HonestClient {
 public:
  virtual ~HonestClient() = default;
  // Itself, if it stores blocks of its own.
  virtual const HonestBlocks* blocks() const { return nullptr; }
  virtual void Step(std::mt19937_64& random, HonestNotes& notes) = 0;
};

// Threads in which a client does its steps. Thread-safe.
class HonestLoad final : private HonestNotes {
 public:
  struct Options {
    std::string name;
    std::string port;  // What is compared with the yardstick of the same port.
    uint32_t threads = 2;
    uint64_t seed = 1;
    Duration pause = std::chrono::milliseconds(2);  // Between two steps of a thread.
    // A call that takes longer waited for somebody else's. A 99th percentile below a sixth of it
    // is never a finding, because it may be the machine.
    Duration longest_call = std::chrono::milliseconds(1500);
  };
  // `server`: calls that fail while it is away on purpose do not count.
  HonestLoad(const TestedServer* server, std::unique_ptr<HonestClient> client, Options options);
  ~HonestLoad() override;
  // Waits until no call is under way, and keeps it so until Continue.
  void Pause();
  void Continue();
  // What happened since the last time.
  HonestWindow TakeWindow();

  const Options& options() const { return options_; }
  const HonestClient& client() const { return *client_; }
  // Calls of all times.
  uint64_t calls() const { return calls_.load(); }

 private:
  void Note(HonestCall call) override;
  void Run(uint64_t seed);
  // False: it ends.
  bool BeginStep();
  void EndStep();

  const TestedServer& server_;
  const std::unique_ptr<HonestClient> client_;
  const Options options_;
  std::atomic<uint64_t> calls_{0};
  mutable Mutex mu_;
  CondVar changed_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  // Its threads wait while it is paused: threads that looked again and again would take the time of
  // the clients that are measured.
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  uint32_t active_ ABSL_GUARDED_BY(mu_) = 0;
  HonestWindow window_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

}  // namespace cairn::fault
