#pragma once
// The blocks that wait for their copy to a slower tier, and the flushes that wait for them.
// Thread-safe; the caller moves the bytes.
//
//  Add ─► in line ─ Fill ─► MoveQueue ─► under way ─┬─ End ──────► no longer here
//           ▲                                       ├─ Postpone ─► postponed: until a pause ends ─┐
//           │                                       ├─ Decline ──► declined: until it is used ────┤
//           │                                       └─ Park ─────► parked: until another succeeds ┤
//           └─────────────────── or until a flush begins ◄────────────────────────────────────────┘
//
// A flush waits for the blocks that are in line, queued, under way or postponed: each has an item
// with a sequence. A block that is lost and stored again meanwhile gets another sequence; the copy
// that ends then ends nothing, and the block is in line again.
//
// Declined and parked blocks have no item, and may be evicted. While copies are stalled, all may
// (LookForStall).

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"
#include "services/cache/store/mover/declined_blocks.h"
#include "services/cache/store/mover/move_queue.h"
#include "services/cache/store/mover/waiting_shares.h"
#include "services/cache/store/state/flush_request.h"

namespace cairn::cache {

struct NamedBlock {
  NamespacePtr ns;
  BlockKey key;
};

class UnwrittenBlocks {
 public:
  static constexpr int kMaxAttempts = 6;
  // Where the disk has no room although it evicted what it may: all that is left is leased, or
  // above this very block on its path.
  static constexpr int kMaxAttemptsForRoom = 3;
  static constexpr size_t kMaxParked = 65536;  // The oldest are forgotten.
  static constexpr size_t kUnparkAtOnce = 64;
  static constexpr size_t kAtOnce = 1024;  // Blocks that are looked at in one step.
  static constexpr Duration kProbeEvery = std::chrono::seconds(1);
  static constexpr Duration kStalledAfter = std::chrono::seconds(30);  // No copy has ended since.

  explicit UnwrittenBlocks(const Clock* clock) : clock_(*clock), last_step_(clock->Now()) {}

  // A new block, of `bytes`, whose share of a room with `room_bytes` it takes (waiting_shares.h).
  // False: its tenant has its share of the room. Then it is not here.
  bool Add(const NamedBlock& block, uint64_t bytes, const WaitingShares::Share& share,
           uint64_t room_bytes);
  // Moves what is in line, and whose time has come, into the queue, as far as that takes it.
  void Fill(MoveQueue* queue, bool ignore_pauses);

  // ---- A copy, from its begin to its end ----

  struct Known {
    uint64_t sequence = 0;   // 0: there is no item.
    uint64_t room = 0;       // The bytes of its share.
    Duration waited{0};      // Since it was added.
    bool flushed = false;    // A flush waits for it,
    bool unlimited = false;  // the last one of the node.
  };
  Known Begin(const NamedBlock& block);
  struct Failure {
    int attempts = 0;
    bool again = false;          // It is tried again after a pause.
    bool parked_before = false;  // Its first failure was told long ago.
  };
  // Counts an attempt that failed. `for_room`: the target was full.
  Failure Fail(const NamedBlock& block, uint64_t sequence, bool for_room);

  // How long blocks that ended had waited; nullopt: it has not ended, it is in line again, or it
  // was not here.
  using Waited = std::optional<Duration>;
  Waited End(const NamedBlock& block, uint64_t sequence);
  // A block that a flush began to wait for meanwhile is not declined, but in line again.
  Waited Decline(const DeclinedBlock& block, uint64_t sequence);
  // The target did not take it: the flushes that wait for it fail.
  Waited Park(const NamedBlock& block, uint64_t sequence);
  enum class Wait : uint8_t { kBudget, kMemory, kRoom, kFault };
  // True: it need not wait after all, since a flush waits. Memory comes with time only, and a
  // failing disk keeps its pauses.
  bool Postpone(const NamedBlock& block, uint64_t sequence, Duration pause, Wait why);

  // ---- Blocks that were set aside ----

  // A block that is not here.
  void AddDeclined(DeclinedBlock block);
  std::vector<std::pair<DeclinedBlocks::Number, DeclinedBlock>> DeclinedToReview();
  // Whether there is a share for a block that is to be put in line.
  bool TakeShare(const NamespaceState& ns, const WaitingShares::Share& share, uint64_t room_bytes);
  enum class Review : uint8_t { kPutInLine, kStays, kGone };
  // `share`: what TakeShare took; of one that is not put in line it is given back.
  void EndReview(DeclinedBlocks::Number number, const NamespaceState& ns, Review review,
                 const WaitingShares::Share& share);
  // Puts the oldest parked blocks in line, for one more attempt each: many after a success, one
  // from time to time.
  void Unpark();
  void ProbeParked();

  // ---- Stalls ----

  struct Stall {
    bool began = false;
    size_t blocks = 0;                // That wait.
    std::vector<NamedBlock> release;  // May be evicted: host serves on without the target.
  };
  // `under_way`: copies are.
  Stall LookForStall(bool under_way);

  // ---- Flushes ----

  // On the caller's stack, from BeginFlush to EndFlush.
  class Flush {
    friend class UnwrittenBlocks;
    uint64_t last = 0;  // The sequence up to which it waits.
    bool lifts_limits = false;
    uint64_t failed = 0;
  };
  // Puts all that was set aside in line.
  void BeginFlush(Flush* flush, bool last);
  // Blocks until everything that was here at the begin has ended. DEADLINE_EXCEEDED, CANCELLED;
  // UNAVAILABLE: some were parked.
  Status EndFlush(Flush* flush, const FlushRequest& request);
  // Lets flushes look whether they were cancelled.
  void Wake() { settled_.NotifyAll(); }

  uint64_t bytes() const {
    MutexLock lock(mu_);
    return bytes_;
  }
  // In line or postponed.
  size_t depth() const {
    MutexLock lock(mu_);
    return line_.size() + postponed_.size();
  }

 private:
  using Id = std::pair<const NamespaceState*, BlockKey>;
  struct Item {
    NamespacePtr ns;
    uint64_t sequence = 0;
    uint64_t bytes = 0;
    int attempts = 0;
    bool parked_before = false;
    TimePoint since{};
    WaitingShares::Share share{};
  };
  struct Parked {
    NamedBlock block;
    uint64_t bytes = 0;
  };
  using Items = absl::flat_hash_map<Id, Item>;

  static Id IdOf(const NamedBlock& block) { return {block.ns.get(), block.key}; }
  // Nothing if it is here: it was lost and stored again.
  void PutInLine(const BlockKey& key, const Item& item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UnparkSome(size_t max, int attempts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The item as it ends. nullopt: the copy with this sequence ends none.
  std::optional<Item> TakeItem(const NamedBlock& block, uint64_t sequence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Before the item is replaced or erased.
  void Uncount(const Item& item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A flush waits for it.
  bool Covered(uint64_t sequence) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Lifted(uint64_t sequence) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Clock& clock_;
  mutable Mutex mu_;
  CondVar settled_;
  Items items_ ABSL_GUARDED_BY(mu_);
  std::deque<NamedBlock> line_ ABSL_GUARDED_BY(mu_);
  std::multimap<TimePoint, NamedBlock> postponed_ ABSL_GUARDED_BY(mu_);
  DeclinedBlocks declined_ ABSL_GUARDED_BY(mu_);
  std::deque<Parked> parked_ ABSL_GUARDED_BY(mu_);
  TimePoint next_probe_ ABSL_GUARDED_BY(mu_){};
  std::set<uint64_t> outstanding_ ABSL_GUARDED_BY(mu_);  // Sequences of the items.
  uint64_t next_sequence_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  WaitingShares shares_ ABSL_GUARDED_BY(mu_);
  std::vector<Flush*> flushes_ ABSL_GUARDED_BY(mu_);
  TimePoint last_step_ ABSL_GUARDED_BY(mu_);  // A copy began or ended.
  bool stalled_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<NamedBlock> stalled_blocks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
