#pragma once
// A match that nobody waits for. The scheduler of an inference engine starts it when a request
// comes, and looks at the answer when it schedules the request. Knows no Python.

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <vector>

#include "cairn/client/cache_client.h"
#include "common/concurrency/mutex.h"

namespace cairn::python {

// Thread-safe.
class PendingMatch {
 public:
  struct Question {
    Digest fingerprint;
    std::vector<BlockKey> keys;
    client::MatchOptions match;         // Without a lease.
    std::optional<Duration> needed_in;  // Then what matched is also brought to the node's memory.
  };
  struct Answer {
    Result<client::MatchOutcome> match;
    Status hint;         // The status of the call that asked the node to bring it.
    Duration time = {};  // The time that the match took.
  };

  explicit PendingMatch(Question question) : process_(getpid()), question_(std::move(question)) {}

  // Asks, and waits for the answer. Once.
  void Run(client::CacheClient& client);
  // Instead of Run.
  void Refuse(const Status& status);

  bool Done() const { return done_.load(std::memory_order_acquire); }
  // Waits until it is done. False: it was not done at `until`. FAILED_PRECONDITION in a process
  // that was forked after the match began, because there it will never be done.
  Result<bool> Wait(TimePoint until);
  // REQUIRES: Done().
  const Answer& answer() const { return *answer_; }

 private:
  void Finish(Answer answer);

  const pid_t process_;
  const Question question_;
  std::optional<Answer> answer_;  // Written before done_.
  std::atomic<bool> done_ = false;
  Mutex mu_;
  CondVar finished_;
};

}  // namespace cairn::python
