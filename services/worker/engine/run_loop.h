#pragma once
// Takes the running requests forward, one round at a time: asks the scheduler which requests step,
// and computes the chunks that these yield in one forward pass.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cairn/common/clock.h"
#include "services/worker/compute/transformer.h"
#include "services/worker/engine/request_run.h"
#include "services/worker/scheduling/scheduler.h"

namespace cairn::worker {

// Not thread-safe: the engine's thread.
class RunLoop {
 public:
  // All must outlive it.
  RunLoop(const RequestParts& parts, Scheduler& scheduler);

  bool HasRoom() const { return runs_.size() < scheduler_.max_running(); }
  bool empty() const { return runs_.empty(); }
  // REQUIRES: HasRoom().
  void Add(std::shared_ptr<Job> job);
  // Goes on with a run that was taken out. REQUIRES: HasRoom().
  void Add(std::unique_ptr<RequestRun> run);
  // The run of this place in Candidates(), which does not step until it is added again.
  std::unique_ptr<RequestRun> TakeOut(size_t index);

  // The running requests as the scheduler sees them, oldest first.
  std::vector<Scheduler::Candidate> Candidates() const;

  // What read policies keep of the contexts of running requests.
  uint64_t near_bytes() const;

  struct Round {
    bool progressed = false;  // False: every request that was picked waits.
    std::vector<std::unique_ptr<RequestRun>> finished;
  };
  // REQUIRES: not empty.
  Round Step();
  // After a round without progress: waits at most 10 ms for fetched bytes.
  void WaitBriefly();

 private:
  struct Chunks {
    std::vector<RequestRun*> runs;
    std::vector<SequenceChunk> chunks;
    int64_t rows = 0;
    PassShape shape;

    void Add(RequestRun& run, const SequenceChunk& chunk);
  };
  Chunks Collect(Round* round);
  // One step of a run, which may have chunks of `rows` tokens.
  worker::Step StepOne(RequestRun& run, int64_t rows);
  void Compute(const Chunks& work);

  const RequestParts& parts_;
  Scheduler& scheduler_;
  uint64_t next_id_ = 1;
  // The run that has no pages yet although it asked: those behind it ask after it. 0: none.
  uint64_t wants_pages_ = 0;
  std::vector<std::unique_ptr<RequestRun>> runs_;  // Oldest first.
};

}  // namespace cairn::worker
