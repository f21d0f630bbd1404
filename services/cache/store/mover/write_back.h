#pragma once
// Copies blocks that are dirty in one tier to a slower one. Thread-safe. What follows calls the
// source host and the target disk, which they are in a node; they may be any two tiers.
//
// Commits are written, oldest first. What does not fit into the bounded move queue waits in
// line here: such blocks are dirty, and dirty blocks are not evicted. Of a room in host only a part
// may be dirty, shared among its tenants (waiting_shares.h), so that the line is bounded and a
// writer that is faster than the disk keeps nobody from storing. A block beyond that is turned away
// until others have been copied.
//
// What is written at all is said by placement/disk_admission.h; what was turned away stays in host
// alone and clean, and is tried again once it was used, and by Flush, which waits for the write
// budget as everybody does. A write that fails is tried again with growing pauses; after
// kMaxAttempts the block is given up: it stays in host alone, may be evicted, and is counted. A
// failing disk never fails a commit.
//
// While the target answers nothing at all, blocks that wait for it may be evicted: host serves on
// without it.
//
// Blocks that were given up are parked. One of them is tried again now and then; when a copy
// succeeds, the others follow, so a disk that was full or away catches up by itself. Flush tries
// them all.
//
// Under a ladder parts are encoded again on the way (block/recoder.h): in a task of the executor,
// without locks, into buffers that end with the write (copied_parts.h); a few blocks at a time,
// within the bounds of copy_memory.h. A block whose bytes turn out to be bad then leaves the host
// tier.

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "services/cache/store/mover/copy_memory.h"
#include "services/cache/store/mover/evictor.h"
#include "services/cache/store/mover/move_queue.h"
#include "services/cache/store/mover/pump.h"
#include "services/cache/store/mover/transfer.h"
#include "services/cache/store/mover/waiting_shares.h"
#include "services/cache/store/placement/disk_admission.h"
#include "services/cache/store/state/flush_request.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

class WriteBack {
 public:
  static constexpr int kMaxAttempts = 6;
  // Where the disk has no room although it evicted what it may: all that is left is leased, or
  // above this very block on its path.
  static constexpr int kMaxAttemptsForRoom = 3;
  static constexpr size_t kMaxParked = 65536;  // The oldest are forgotten.
  static constexpr size_t kUnparkAtOnce = 64;
  static constexpr size_t kMaxDeclined = 65536;  // The oldest are forgotten.
  static constexpr size_t kReviewAtOnce = 1024;  // Of those, looked at by one Tick.
  static constexpr Duration kCopyPause = std::chrono::milliseconds(20);  // Before it asks again.
  static constexpr Duration kProbeEvery = std::chrono::seconds(1);
  static constexpr Duration kStalledAfter = std::chrono::seconds(30);  // No copy has ended since.

  WriteBack(NodeContext* context, Evictor* evictor, const Route& route);

  // A block came to the source, and was marked dirty there. `room`: the bytes that it takes there,
  // holes included. No effect when the node lacks the target.
  void Add(const NamespacePtr& ns, const BlockKey& key, uint64_t bytes, uint64_t room);
  // Starts again what was postponed.
  void Tick();
  // Blocks until everything added before, and still in the source alone, is written and flushed.
  // DEADLINE_EXCEEDED, CANCELLED, and UNAVAILABLE when the disk did not take blocks that were added
  // before. Blocks that no disk could take (bytes that the target's codec cannot store, parts
  // larger than an extent) are no error: they stay in the source, and are counted.
  Status Flush(const FlushRequest& request);

  uint64_t unflushed_bytes() const {
    MutexLock lock(mu_);
    return unflushed_bytes_;
  }
  size_t depth() const {
    const size_t waiting = queue_.depth();
    MutexLock lock(mu_);
    return waiting + line_.size() + postponed_.size();
  }
  const MoveQueue& queue() const { return queue_; }

 private:
  using Id = std::pair<const NamespaceState*, BlockKey>;
  struct Item {
    NamespacePtr ns;
    uint64_t sequence = 0;
    uint64_t bytes = 0;
    int attempts = 0;
    bool parked_before = false;
    TimePoint since{};             // Of its commit.
    WaitingShares::Share share{};  // While it is dirty.
  };
  struct Declined {
    NamespacePtr ns;
    BlockKey key;
    uint64_t bytes = 0;
    uint16_t uses = 0;     // When it was turned away.
    uint64_t room = 0;     // As Add has it.
    bool crowded = false;  // Too many others were waiting.
  };
  struct Parked {
    NamespacePtr ns;
    BlockKey key;
    uint64_t bytes = 0;
  };
  struct Operation;
  // A Flush that waits.
  struct Waiting {
    uint64_t last = 0;  // The sequence up to which it waits.
    bool lifts_limits = false;
    uint64_t failed = 0;
  };

  // Whether the block is copied now. Under the lock of its namespace.
  DiskAdmission::Decision Admit(const Operation& operation, const BlockMeta& meta);
  // Takes the memory that the copy needs beside its block. False: others have it.
  bool TakeMemory(Operation& operation, const BlockMeta& meta);
  void Decline(const Declined& declined) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The block may be evicted, and is looked at again later.
  void TurnAway(const NamespacePtr& ns, const BlockKey& key, uint64_t bytes, uint64_t room);
  // Puts in line what was turned away and has been used since, and what was turned away because too
  // many others were waiting.
  void ReviewDeclined();
  // Among whose bytes the block's count while it is dirty, and how many that room has.
  std::pair<WaitingShares::Share, uint64_t> ShareOf(const NamespaceState& ns, uint64_t room) const;
  bool Covered(uint64_t sequence) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Lifted(uint64_t sequence) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Lets blocks be evicted that wait for a target that answers nothing.
  void ReleaseStalled();
  // Unless it is there.
  void PutInLine(const BlockKey& key, const Item& item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool StartOne();
  // Decides whether the block is copied now, and pins it then. Not OK: it is not.
  Status Begin(Operation& operation);
  // The bytes of the parts are in memory. `operation` is the transfer.
  void Loaded(Operation& operation, const std::shared_ptr<Transfer>& transfer);
  // Takes room in the target, and writes there.
  void Store(Operation& operation, const std::shared_ptr<Transfer>& transfer);
  // An operation that asked for a pause waits for its turn again.
  void Postpone(const Operation& op);
  void Finish(Operation& operation);
  // An operation that failed waits for another attempt.
  void TryAgain(const Operation& op, const Status& status, int attempts);
  // An operation is the last of its item.
  void Conclude(const Operation& op, const Status& status, bool shown, bool still_there,
                bool parked_before);
  // The item is over: written, given up (then it may be parked), or no longer there.
  void Settle(const Operation& op, bool park);
  // Moves what waits in line, and what is due, into the queue.
  void FillQueue(bool ignore_pauses);
  // Puts up to `max` parked blocks in line again, with so many attempts behind them.
  void Unpark(size_t max, int attempts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  NodeContext& context_;
  Evictor& evictor_;
  const Route route_;
  Tier* const target_;        // nullptr: the node has none.
  const bool to_persistent_;  // Its parts have records and, under a ladder, another codec.
  DiskAdmission admission_;
  CopyMemory memory_;
  MoveQueue queue_;
  Pump pump_;
  // Held while declined blocks are in neither list, so that a flush finds all of them. Before the
  // lock of a namespace and mu_.
  Mutex review_mu_;
  mutable Mutex mu_;
  CondVar settled_;
  absl::flat_hash_map<Id, Item> items_ ABSL_GUARDED_BY(mu_);
  std::deque<std::pair<NamespacePtr, BlockKey>> line_ ABSL_GUARDED_BY(mu_);
  std::multimap<TimePoint, std::pair<NamespacePtr, BlockKey>> postponed_ ABSL_GUARDED_BY(mu_);
  std::deque<Declined> declined_ ABSL_GUARDED_BY(mu_);
  std::deque<Parked> parked_ ABSL_GUARDED_BY(mu_);
  TimePoint next_probe_ ABSL_GUARDED_BY(mu_);
  std::set<uint64_t> outstanding_ ABSL_GUARDED_BY(mu_);
  uint64_t next_sequence_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t unflushed_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  WaitingShares shares_ ABSL_GUARDED_BY(mu_);
  std::vector<Waiting*> flushes_ ABSL_GUARDED_BY(mu_);
  TimePoint last_step_ ABSL_GUARDED_BY(mu_);  // A copy began or ended.
  bool stalled_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::pair<NamespacePtr, BlockKey>> stalled_blocks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
