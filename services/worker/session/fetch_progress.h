#pragma once
// The state of a fetch: what has arrived (fetched_pieces.h), what is computed meanwhile, and
// waiting for it under a progress deadline (fetch_patience.h).
//
// The client writes verified slices straight into KV pages, or lends them, from a thread of its
// own; the engine's thread computes blocks of the front and then waits layer by layer. A fetch that
// fails, or brings no new slice for too long, is over: what was complete by then counts, the rest
// is computed.
//
// No page is written by both threads: the fetch announces each write (BeginWrite), the engine
// claims blocks before it computes them (Claim), and each keeps off what the other has.
//
// The engine's thread waits on its Wakeup, which is notified of each complete layer or block, of a
// block that fails, and of the end.

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/kv/miss_reason.h"
#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "common/concurrency/wakeup.h"
#include "services/worker/session/fetch_patience.h"
#include "services/worker/session/fetch_pilot.h"
#include "services/worker/session/fetched_pieces.h"

namespace cairn::worker {

// Lets the engine's thread leave a wait although the fetch goes on.
struct FetchInterrupt {
  // Asked whenever the wakeup is notified, and at `at`. True ends the wait. Null: nothing does.
  std::function<bool()> wanted = nullptr;
  TimePoint at = TimePoint::max();
};

// Thread-safe.
class FetchProgress {
 public:
  using Shape = FetchedPieces::Shape;
  using Piece = FetchedPieces::Piece;
  using LayerTimes = FetchedPieces::LayerTimes;
  // Everything is fetched, in one call. Clock and wakeup must outlive it.
  FetchProgress(const Clock& clock, Wakeup& wakeup, const Shape& shape,
                const FetchDeadlines& deadlines);
  // With a pilot that decides. Shape is that of `setup`.
  FetchProgress(const Clock& clock, Wakeup& wakeup, uint32_t heads, const FetchDeadlines& deadlines,
                const FetchPilot::Setup& setup, const PrefillModel& prefill);

  // The fetching thread. ------------------------------------------------------------------------
  // The next range to ask the node for. Waits while nothing is wanted but may still be; nullopt
  // when the fetch is over. Each range is followed by CallEnded, the last one by Ended.
  std::optional<FetchPlan::Range> NextRange();
  void CallEnded();

  // How many of the piece's heads have not arrived and are still of use; 0 for a piece outside of
  // the fetch. Only when all are missing may unverified bytes be written to its place in the page.
  uint32_t Missing(const Piece& piece) const;
  // Leave to write to the block's page, until EndWrite. False when the engine has the block.
  bool BeginWrite(uint32_t block);
  void EndWrite(uint32_t block);
  // The piece is in its page and verified. Parts may overlap: heads that were there are not counted
  // again. `lent`: it is read where it lies. REQUIRES: Missing(piece) > 0.
  void Arrived(const Piece& piece, uint64_t bytes, std::optional<TierKind> from, bool lent = false);
  // True when no piece of the block has arrived.
  bool Untouched(uint32_t block) const;
  // The block will not come.
  void BlockFailed(uint32_t block, MissReason reason);
  // The client is done: nothing more will arrive, or be written.
  void Ended(MissReason reason_for_the_rest);

  // The engine's thread. ------------------------------------------------------------------------
  struct Step {
    uint32_t front = 0;   // Blocks that are there: fetched, or claimed.
    uint32_t target = 0;  // Claim and compute blocks up to here; `front`: wait for the fetch.
  };
  // The decision for the time when the blocks before `front` are there.
  Step Decide(uint32_t front);
  // Takes blocks [begin, end) from the fetch, to compute them. Waits for writes that have begun;
  // when they do not end soon, `cancel_call` is called, which makes the client return from its
  // call. False when they do not end in time even so: the fetch is then over.
  bool Claim(uint32_t begin, uint32_t end, const std::function<void()>& cancel_call = nullptr);
  // Blocks are (not) computed from now on.
  void SetComputing(bool computing);
  // True while a call to the node is under way.
  bool Asking() const;

  // Waits until `layer` of all blocks that are not claimed is there: OK. ABORTED when a block
  // failed, the fetch ended without it, a deadline passed (then TimedOut()), computing more of the
  // front is better now (then TurnedBack()), or the caller is wanted elsewhere.
  Status WaitLayer(uint32_t layer, uint32_t front = 0, const FetchInterrupt& interrupt = {});
  bool TurnedBack() const;
  // Asks for all blocks that are not claimed: nobody will call Decide and Claim any more.
  void FetchTheRest();
  // Waits until every block before the first failed one is complete, the fetch has ended, a
  // deadline passed, or the caller is wanted elsewhere.
  void WaitDone(const FetchInterrupt& interrupt = {});
  // The same without waiting: true when WaitDone would return at once. The stall deadline counts
  // from the first call on.
  bool PollDone();
  // When PollDone says true although nothing arrives.
  TimePoint PollDeadline() const;
  // No more ranges.
  void Stop();
  // Waits for Ended. The fetch must have been told to stop, or be at its end.
  void WaitEnded();
  // Failed, late, or at its end without all blocks.
  bool Broken() const;

  bool TimedOut() const;
  // Complete or claimed blocks from the first one on.
  uint32_t CompletePrefix() const;
  // How many of these were fetched.
  uint32_t FetchedBlocks() const;
  // Why block CompletePrefix() is missing; kNone when none is.
  MissReason Reason() const;
  BytesByTier bytes() const;
  // Time of the last piece; the start when nothing has arrived.
  TimePoint last_arrival() const;
  uint32_t blocks() const { return shape_.blocks; }
  FetchModel::Sample Sample(TierKind tier) const;

  std::vector<LayerTimes> layer_times() const;

 private:
  double Since(TimePoint now) const { return Seconds(now - deadlines_.start); }
  double Now() const { return Since(clock_.Now()); }
  // Waits for `done`. Other ends: a deadline, the end of the fetch; `leave` says true. Both are
  // asked with the mutex held, and again at the time that `leave` sets, if it sets any.
  template <typename Done, typename Leave>
  void WaitProgress(Done done, Leave leave);
  // Nothing has come for too long.
  void GiveUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool DoneLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return timed_out_ || ended_ || CompletePrefixLocked() == pieces_.first_failed();
  }
  uint32_t MissingLocked(const Piece& piece) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Complete(uint32_t block) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint32_t CompletePrefixLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const Clock& clock_;
  Wakeup& wakeup_;
  const Shape shape_;
  const FetchDeadlines deadlines_;

  mutable Mutex mu_;
  CondVar changed_;  // For the fetching thread, and for short waits for it.
  FetchPilot pilot_ ABSL_GUARDED_BY(mu_);
  FetchedPieces pieces_ ABSL_GUARDED_BY(mu_);
  FetchPatience patience_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> writes_ ABSL_GUARDED_BY(mu_);  // Under way, by block.
  uint32_t claim_begin_ ABSL_GUARDED_BY(mu_) = 0;      // Being claimed: no new writes.
  uint32_t claim_end_ ABSL_GUARDED_BY(mu_) = 0;
  bool asking_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool timed_out_ ABSL_GUARDED_BY(mu_) = false;
  bool turned_back_ ABSL_GUARDED_BY(mu_) = false;
  MissReason end_reason_ ABSL_GUARDED_BY(mu_) = MissReason::kNone;
};

}  // namespace cairn::worker
