#pragma once
// Copies blocks that are dirty in one tier to a slower one. Thread-safe. The text below calls the
// source host and the target disk, which they are in a node; they may be any two tiers.
//
// Commits are written, oldest first. Blocks that do not fit into the bounded move queue wait in
// line (unwritten_blocks.h): such blocks are dirty, and dirty blocks are not evicted. Only a part
// of a room in host may be dirty, shared among its tenants (waiting_shares.h), so that the line is
// bounded and a writer that is faster than the disk keeps nobody from storing. A block beyond that
// is turned away until others have been copied.
//
// The way of a copy, and how it may end (Ended):
//
//   StartOne ─ Decide ─┬─► Load ─► Loaded: verified, encoded ─► Store ─┬─► kWritten
//                      │              └───────── an error ─────────────┼─► kRetry    after a pause
//                      ├─► kGone      nothing to copy                  ├─► kParked   too many times
//                      ├─► kPostponed for budget or memory             ├─► kHopeless no disk fits
//                      └─► kDeclined  not worth it now                 ├─► kCorrupt  leaves host
//                                                                      └─► kGone     meanwhile
//
// placement/disk_admission.h says which blocks are written at all. A declined block stays in host
// alone and clean, and is tried again once it was used, and by Flush, which waits for the write
// budget as everybody does. A write that fails is tried again with growing pauses; after some
// attempts the block is parked: it stays in host alone, may be evicted, and is counted. A failing
// disk never fails a commit. One parked block is tried again now and then; when a copy succeeds,
// others follow, so a disk that was full or away catches up by itself. Flush tries them all.
//
// While the target answers nothing at all, blocks that wait for it may be evicted: host serves on
// without it.
//
// Under a ladder parts are encoded again on the way (block/recoder.h): in a task of the executor,
// without locks, into buffers that end with the write (copied_parts.h); a few blocks at a time,
// within the bounds of copy_memory.h.

#include <atomic>
#include <optional>
#include <utility>

#include "services/cache/store/mover/copy_memory.h"
#include "services/cache/store/mover/evictor.h"
#include "services/cache/store/mover/move_queue.h"
#include "services/cache/store/mover/pump.h"
#include "services/cache/store/mover/transfer.h"
#include "services/cache/store/mover/unwritten_blocks.h"
#include "services/cache/store/mover/waiting_shares.h"
#include "services/cache/store/placement/disk_admission.h"
#include "services/cache/store/state/flush_request.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

class WriteBack {
 public:
  static constexpr Duration kReportEvery = std::chrono::seconds(10);     // Lines of the log.
  static constexpr Duration kCopyPause = std::chrono::milliseconds(20);  // Before it asks again.

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

  uint64_t unflushed_bytes() const { return blocks_.bytes(); }
  size_t depth() const { return queue_.depth() + blocks_.depth(); }
  const MoveQueue& queue() const { return queue_; }

 private:
  enum class Ended : uint8_t {
    kWritten,
    kPostponed,
    kDeclined,
    kRetry,
    kParked,
    kHopeless,
    kCorrupt,
    kGone,
  };
  struct Operation;

  // Takes the memory that the copy needs besides its block. False: others have it.
  bool TakeMemory(Operation& operation, const BlockMeta& meta);
  // The block may be evicted, and is looked at again later.
  void TurnAway(const NamespacePtr& ns, const BlockKey& key, uint64_t bytes, uint64_t room);
  // Puts declined blocks in line that have been used since, and those that were turned away because
  // too many others were waiting.
  void ReviewDeclined();
  // Among whose bytes the block's count while it is dirty, and how many that room has.
  std::pair<WaitingShares::Share, uint64_t> ShareOf(const NamespaceState& ns, uint64_t room) const;
  // Lets blocks be evicted that wait for a target that answers nothing.
  void ReleaseStalled();
  bool StartOne();
  // Whether the block is copied now: then it is pinned. Else how it ended.
  std::optional<Ended> Decide(Operation& operation);
  DiskAdmission::Decision Admit(const Operation& operation, const BlockMeta& meta,
                                const UnwrittenBlocks::Known& known);
  // The bytes of the parts are in memory. `operation` is the transfer.
  void Loaded(Operation& operation, const std::shared_ptr<Transfer>& transfer);
  // Takes room in the target, and writes there.
  void Store(Operation& operation, const std::shared_ptr<Transfer>& transfer);
  // Shows the copy in the index, if it ended well, and lets go of the block.
  Ended Leave(Operation& operation, const Status& status);
  void Finish(Operation& operation);
  // The target did not take the block. Not said again of one that was parked before.
  void CountGivenUp(const Operation& operation, const Status& status);

  NodeContext& context_;
  Evictor& evictor_;
  const Route route_;
  Tier* const target_;        // nullptr: the node has none.
  const bool to_persistent_;  // Its parts have records and, under a ladder, another codec.
  DiskAdmission admission_;
  CopyMemory memory_;
  MoveQueue queue_;
  UnwrittenBlocks blocks_;
  Pump pump_;
  std::atomic<uint64_t> unreported_{0};      // Given up since the last line of the log about it.
  std::atomic<Duration::rep> report_at_{0};  // No such line before that time.
};

}  // namespace cairn::cache
