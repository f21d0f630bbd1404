#include "services/worker/session/push_turn.h"

#include <utility>

namespace cairn::worker {

void PushTurn::Take(const Clock& clock) {
  MutexLock lock(mu_);
  changed_.Wait(mu_, clock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !taken_; });
  taken_ = true;
}

void PushTurn::GiveBack() {
  MutexLock lock(mu_);
  taken_ = false;
  changed_.NotifyAll();
}

bool PushAndWait(PushQueue& push, const Digest& fingerprint, const KvCodec& codec,
                 std::vector<ComputedBlock> blocks, const std::function<bool()>& cancelled) {
  const PushQueue::Stats before = push.GetStats();
  push.Enqueue(fingerprint, codec, std::move(blocks));
  while (!cancelled() && push.RunOnce()) {
  }
  if (cancelled()) push.DropPending();
  const PushQueue::Stats after = push.GetStats();
  return after.failed_blocks + after.dropped_blocks == before.failed_blocks + before.dropped_blocks;
}

}  // namespace cairn::worker
