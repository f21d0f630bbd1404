#pragma once
// Honest clients beside the hostile ones: they read and write blocks of their own tenants with the
// real client library, and check every byte.

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cairn/client/connect.h"
#include "common/concurrency/mutex.h"
#include "tests/fault/adversary/tested_node.h"
#include "tests/fault/load/actions.h"

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
  uint64_t local_calls = 0;             // Of `calls`, those of clients that use shared memory.
  std::vector<std::string> wrong = {};  // Wrong bytes. Must stay empty.

  double SuccessRate() const;
  // 0 <= quantile <= 1. 0 without a call.
  double Quantile(double quantile) const;
  void Add(const HonestWindow& other);
};

// Thread-safe.
class HonestLoad {
 public:
  struct Options {
    std::string tenant;
    client::PathChoice path = client::PathChoice::kAuto;
    uint32_t threads = 2;
    uint64_t seed = 1;
    Duration pause = std::chrono::milliseconds(2);  // Between two calls of a thread.
  };
  HonestLoad(const TestedNode* node, Options options);
  ~HonestLoad();
  // Waits until no call is under way, and keeps it so until Continue.
  void Pause();
  void Continue();
  // What happened since the last time.
  HonestWindow TakeWindow();

  const FaultModel& model() const { return model_; }
  // About the next prompt that a thread will store: hostile clients may want to be there first.
  uint64_t next_prompt() const { return next_prompt_.load(); }
  client::CacheClient& client() { return *client_; }

 private:
  void Run(uint64_t seed);
  // False: it ends.
  bool BeginStep();
  void EndStep();
  void Step(uint64_t prompt);
  void Note(const char* what, TimePoint begin, const std::string& failure,
            const std::vector<std::string>& wrong, uint64_t blocks);

  const TestedNode& node_;
  const Options options_;
  const FaultModel model_;
  std::unique_ptr<client::CacheClient> client_;
  std::atomic<uint64_t> next_prompt_{0};
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
