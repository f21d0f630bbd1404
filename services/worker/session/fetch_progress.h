#pragma once
// What has arrived of a fetch, and waiting for it under a progress deadline.
//
// The client writes verified slices straight into KV pages, from a thread of its own; the forward
// pass waits layer by layer. A fetch that fails, or brings no new slice for too long, is over: what
// was complete by then counts, the rest is computed.

#include <cstdint>
#include <vector>

#include "services/common/clock/clock.h"
#include "services/common/concurrency/mutex.h"
#include "services/common/status/status.h"
#include "services/worker/session/miss_reason.h"

namespace cairn::worker {

// Thread-safe.
class FetchProgress {
 public:
  // REQUIRES: blocks > 0, layers > 0. `stall`: how long nothing new may arrive; `limit`: how long it
  // may take in all. Both count from `start`.
  FetchProgress(uint32_t blocks, uint32_t layers, TimePoint start, Duration stall, Duration limit);

  // One layer of one block has arrived and is verified. A second report of the same is ignored.
  void SliceArrived(uint32_t block, uint32_t layer, uint64_t bytes, bool from_disk, TimePoint now);
  // The block will not come.
  void BlockFailed(uint32_t block, MissReason reason);
  // The client is done: nothing more will arrive, or be written.
  void Ended(MissReason reason_for_the_rest);

  // Waits until `layer` of all blocks is there: OK. ABORTED when a block failed, the fetch ended
  // without it or a deadline passed (then TimedOut()).
  Status WaitLayer(uint32_t layer);
  // Waits until every block before the first failed one is complete, the fetch has ended, or a deadline
  // passed.
  void WaitDone();
  // Waits for Ended. The fetch must have been told to stop, or be at its end.
  void WaitEnded();

  bool TimedOut() const;
  // True when every slice is there.
  bool Complete() const;
  // Complete blocks from the first one on.
  uint32_t CompletePrefix() const;
  // Why block CompletePrefix() is missing; kNone when Complete().
  MissReason Reason() const;
  BytesByTier bytes() const;

 private:
  template <typename Predicate>
  void WaitProgress(Predicate done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint32_t CompletePrefixLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const uint32_t blocks_;
  const uint32_t layers_;
  const Duration stall_;
  const TimePoint limit_;

  mutable Mutex mu_;
  CondVar changed_;
  std::vector<bool> arrived_ ABSL_GUARDED_BY(mu_);             // [layer][block]
  std::vector<uint32_t> layer_missing_ ABSL_GUARDED_BY(mu_);   // Blocks still to come, by layer.
  std::vector<uint32_t> block_missing_ ABSL_GUARDED_BY(mu_);   // Layers still to come, by block.
  std::vector<MissReason> block_reason_ ABSL_GUARDED_BY(mu_);  // kNone unless failed.
  uint64_t slices_missing_ ABSL_GUARDED_BY(mu_);
  TimePoint last_arrival_ ABSL_GUARDED_BY(mu_);
  uint32_t first_failed_ ABSL_GUARDED_BY(mu_);  // blocks_: none.
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool timed_out_ ABSL_GUARDED_BY(mu_) = false;
  MissReason end_reason_ ABSL_GUARDED_BY(mu_) = MissReason::kNone;
  BytesByTier bytes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::worker
