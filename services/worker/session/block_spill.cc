#include "services/worker/session/block_spill.h"

#include <atomic>
#include <utility>

namespace cairn::worker {

struct BlockSpill::Work {
  Work(const Dependencies& dependencies_in, SpilledKv& kv_in, Wanted wanted_in)
      : dependencies(dependencies_in), kv(kv_in), wanted(std::move(wanted_in)) {}

  void Run() {
    dependencies.turn.Take(dependencies.clock);
    Spill();
    dependencies.turn.GiveBack();
  }

  void Spill() {
    outcome.taken = Push();
    outcome.refused = outcome.taken ? OkStatus() : dependencies.push.last_failure();
    outcome.held = outcome.taken ? kv.Hold(wanted.keys) : outcome.refused;
    // There is no room in addition to the leased blocks: the node refused blocks, or gave up those
    // that it had taken.
    outcome.full = outcome.taken ? outcome.held.ok() && kv.tokens() >= wanted.held_tokens &&
                                       kv.tokens() < wanted.all_tokens
                                 : outcome.refused.code() == StatusCode::kResourceExhausted;
    if ((outcome.taken && !outcome.full) || cancelled.load()) return;
    // Blocks that are leased in place stay in the node's memory. Without the lease it may go to
    // disk.
    kv.LetGo();
    (void)dependencies.client.Flush({.deadline = wanted.flush_deadline, .trace = wanted.trace});
    outcome.taken = Push();
    if (!outcome.taken) outcome.refused = dependencies.push.last_failure();
    outcome.held = kv.Hold(wanted.keys);
  }

  // False: the node did not take all blocks.
  bool Push() {
    return PushAndWait(dependencies.push, wanted.fingerprint, *wanted.codec, wanted.blocks,
                       [this] { return cancelled.load(); });
  }

  const Dependencies dependencies;
  SpilledKv& kv;
  Wanted wanted;
  Outcome outcome;  // The task's, until it is done.
  std::atomic<bool> cancelled{false};
};

BlockSpill::BlockSpill(const Dependencies& dependencies, SpilledKv& kv, Wanted wanted)
    : work_(std::make_unique<Work>(dependencies, kv, std::move(wanted))),
      task_(dependencies.executor, dependencies.clock, dependencies.wakeup,
            [work = work_.get()] { work->Run(); }) {}

BlockSpill::~BlockSpill() { Cancel(); }

void BlockSpill::Cancel() { work_->cancelled.store(true); }

const BlockSpill::Outcome& BlockSpill::outcome() const { return work_->outcome; }

}  // namespace cairn::worker
