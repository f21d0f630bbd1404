#pragma once
// Pushes whose result their caller waits for, on a queue that no thread of its own drives.

#include <functional>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/hash.h"
#include "common/concurrency/mutex.h"
#include "services/worker/session/push_queue.h"

namespace cairn::worker {

// The turn of the caller that drives such a queue now: one at a time, so that each sees what became
// of its own blocks. Thread-safe.
class PushTurn {
 public:
  void Take(const Clock& clock);
  void GiveBack();

 private:
  Mutex mu_;
  CondVar changed_;
  bool taken_ ABSL_GUARDED_BY(mu_) = false;
};

// Pushes the blocks, and returns when none of their pages is referenced any more. False: the node
// did not take all of them. `cancelled`, asked between batches: true drops the rest. REQUIRES: the
// caller has the turn of `push`.
bool PushAndWait(PushQueue& push, const Digest& fingerprint, const KvCodec& codec,
                 std::vector<ComputedBlock> blocks, const std::function<bool()>& cancelled);

}  // namespace cairn::worker
