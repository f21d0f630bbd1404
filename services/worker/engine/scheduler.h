#pragma once
// Which of the running requests work next. A policy: it sees numbers and answers with numbers.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn::worker {

// Called from the engine's thread only.
class Scheduler {
 public:
  virtual ~Scheduler() = default;

  // Requests that may run at the same time; the others wait in the queue. At least 1, and always
  // the same. With 1 a request overlaps its fetch with its computing (prompt_run.h).
  virtual size_t max_running() const = 0;

  struct Candidate {
    uint64_t id = 0;        // Ascending in the order in which requests left the queue.
    bool decoding = false;  // The prompt is computed: the next chunk has one token.
  };
  // The requests that step in the next round, as indices into `running`, each at most once. The
  // first one is the first to get rows of the round's forward pass. `running` is not empty, oldest
  // first. An empty answer makes no progress.
  virtual std::vector<size_t> Pick(std::span<const Candidate> running) = 0;
};

// One request at a time, in the order of their arrival.
class FifoScheduler final : public Scheduler {
 public:
  size_t max_running() const override { return 1; }
  std::vector<size_t> Pick(std::span<const Candidate> /*running*/) override { return {0}; }
};

}  // namespace cairn::worker
