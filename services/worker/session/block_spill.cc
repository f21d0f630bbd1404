#include "services/worker/session/block_spill.h"

#include <atomic>
#include <utility>

namespace cairn::worker {

void SpillTurn::Take(const Clock& clock) {
  MutexLock lock(mu_);
  changed_.Wait(mu_, clock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !taken_; });
  taken_ = true;
}

void SpillTurn::GiveBack() {
  MutexLock lock(mu_);
  taken_ = false;
  changed_.NotifyAll();
}

struct BlockSpill::Work {
  Work(const Dependencies& dependencies_in, SpilledKv& kv_in, Wanted wanted_in)
      : dependencies(dependencies_in), kv(kv_in), wanted(std::move(wanted_in)) {}

  void Run() {
    dependencies.turn.Take(dependencies.clock);
    Spill();
    dependencies.turn.GiveBack();
    MutexLock lock(mu);
    done = true;
    changed.NotifyAll();
    // With the lock held: whoever sees the end may destroy the wakeup.
    dependencies.wakeup.Notify();
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
    PushQueue& push = dependencies.push;
    const PushQueue::Stats before = push.GetStats();
    push.Enqueue(wanted.fingerprint, *wanted.codec, wanted.blocks);
    while (!cancelled.load() && push.RunOnce()) {
    }
    if (cancelled.load()) push.DropPending();
    const PushQueue::Stats after = push.GetStats();
    return after.failed_blocks + after.dropped_blocks ==
           before.failed_blocks + before.dropped_blocks;
  }

  const Dependencies dependencies;
  SpilledKv& kv;
  Wanted wanted;
  Outcome outcome;  // The task's, until it is done.
  std::atomic<bool> cancelled{false};

  Mutex mu;
  CondVar changed;
  bool done ABSL_GUARDED_BY(mu) = false;
};

BlockSpill::BlockSpill(const Dependencies& dependencies, SpilledKv& kv, Wanted wanted)
    : work_(std::make_shared<Work>(dependencies, kv, std::move(wanted))) {
  if (!dependencies.executor.Post([work = work_] { work->Run(); }).ok()) work_->Run();
}

BlockSpill::~BlockSpill() {
  Cancel();
  Work& work = *work_;
  MutexLock lock(work.mu);
  work.changed.Wait(work.mu, work.dependencies.clock,
                    [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(work.mu) { return work.done; });
}

bool BlockSpill::done() const {
  MutexLock lock(work_->mu);
  return work_->done;
}

void BlockSpill::Cancel() { work_->cancelled.store(true); }

const BlockSpill::Outcome& BlockSpill::outcome() const { return work_->outcome; }

}  // namespace cairn::worker
