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
  struct Shape {
    uint32_t blocks = 0;  // At least 1, all of them.
    uint32_t layers = 0;
    uint32_t heads = 0;
  };
  // `stall`: how long nothing new may arrive; `limit`: how long it may take in all. Both count from
  // `start`.
  FetchProgress(const Shape& shape, TimePoint start, Duration stall, Duration limit);

  // Some heads of one layer of one block.
  struct Piece {
    uint32_t block = 0;
    uint32_t layer = 0;
    uint32_t head_begin = 0;
    uint32_t head_end = 0;  // Exclusive.
  };
  // How many of the piece's heads have not arrived; 0 for a piece outside of the fetch. Only when all
  // are missing may unverified bytes be written to its place in the page.
  uint32_t Missing(const Piece& piece) const;
  // The piece is in its page and verified. Parts may overlap: heads that were there are not counted
  // again. REQUIRES: Missing(piece) > 0.
  void Arrived(const Piece& piece, uint64_t bytes, bool from_disk, TimePoint now);
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
  // Complete blocks from the first one on.
  uint32_t CompletePrefix() const;
  // Why block CompletePrefix() is missing; kNone when none is.
  MissReason Reason() const;
  BytesByTier bytes() const;
  // Of the last piece; the start when nothing has arrived.
  TimePoint last_arrival() const;
  uint32_t blocks() const { return shape_.blocks; }

 private:
  template <typename Predicate>
  void WaitProgress(Predicate done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint32_t MissingLocked(const Piece& piece) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  size_t Cell(const Piece& piece, uint32_t head) const {
    return (static_cast<size_t>(piece.layer) * shape_.blocks + piece.block) * shape_.heads + head;
  }
  uint32_t CompletePrefixLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const Shape shape_;
  const Duration stall_;
  const TimePoint limit_;

  mutable Mutex mu_;
  CondVar changed_;
  std::vector<bool> arrived_ ABSL_GUARDED_BY(mu_);  // [layer][block][head]
  // Cells (layer, block, head) still to come, by layer and by block.
  std::vector<uint32_t> layer_missing_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> block_missing_ ABSL_GUARDED_BY(mu_);
  std::vector<MissReason> block_reason_ ABSL_GUARDED_BY(mu_);  // kNone unless failed.
  TimePoint last_arrival_ ABSL_GUARDED_BY(mu_);
  uint32_t first_failed_ ABSL_GUARDED_BY(mu_);  // shape_.blocks: none.
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool timed_out_ ABSL_GUARDED_BY(mu_) = false;
  MissReason end_reason_ ABSL_GUARDED_BY(mu_) = MissReason::kNone;
  BytesByTier bytes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::worker
