#pragma once
// The reads of blocks from a source: one for each block, however many fetches wait for it.
// Thread-safe.
//
//   Request ─► line ─► [executor] source.Read ─► [any thread] Finish: verified, shown, told
//                              └──── timer: the readers wait no longer ─────────────┘
//
// A read that nobody waits for any more when its turn comes is forgotten. One that is under way
// keeps its place until the source lets go of it, so that a source that hangs holds a bounded part
// of the arena. Those in line wait as long as reads come to their end: a long prompt over a slow
// link takes its time. When none has ended for source_read_timeout, the whole line is given up.

#include <deque>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "common/concurrency/timers.h"
#include "services/cache/store/engine/arriving_block.h"
#include "services/cache/store/mover/pump.h"
#include "services/cache/store/source/block_source.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

class SourceReads {
 public:
  // `source` nullptr: the node has none, and nothing is requested. With a source, `timers` is
  // required. All outlive it.
  SourceReads(NodeContext* context, BlockIntake* intake, TransferBudget* budget,
              BlockSource* source, Timers* timers);

  // Joins the read of this block, or puts it in line. nullptr: too many wait. From its beginning
  // until the outcome it takes at most source_read_timeout.
  std::shared_ptr<ArrivingBlock> Request(const NamespacePtr& ns, const BlockKey& key);
  // Starts what waits for a place on the executor.
  void Kick() {
    if (source_ != nullptr) pump_.Kick();
  }
  // Forgets what has not been started. For the end: the engine then waits for the rest.
  void Close();
  // There could be a transfer buffer of this size.
  bool HasBuffer(uint64_t bytes) const {
    return budget_.used() + std::min(bytes, budget_.capacity()) <= budget_.capacity();
  }

 private:
  using Id = std::pair<const NamespaceState*, BlockKey>;
  struct Entry {
    std::shared_ptr<ArrivingBlock> block;
    Timers::Id timer = 0;  // Once it has begun.
    bool started = false;
  };
  bool StartOne();
  // The read is over: the source has called back, or destroyed its callback.
  void Finish(const std::shared_ptr<ArrivingBlock>& block, const Status& status);
  void GiveUp(const std::shared_ptr<ArrivingBlock>& block);
  // Looks whether reads still end, while there is a line.
  void WatchLine() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LookAtLine();
  // Takes the entry of this block out, if it still has one.
  std::optional<Entry> TakeEntry(const ArrivingBlock& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  NodeContext& context_;
  BlockIntake& intake_;
  TransferBudget& budget_;
  BlockSource* const source_;
  Timers* const timers_;
  Pump pump_;
  Mutex mu_;
  absl::flat_hash_map<Id, Entry> entries_ ABSL_GUARDED_BY(mu_);  // Without an outcome.
  std::deque<Id> line_ ABSL_GUARDED_BY(mu_);  // Some may have gone from entries_.
  size_t under_way_ ABSL_GUARDED_BY(mu_) = 0;
  TimePoint last_end_ ABSL_GUARDED_BY(mu_){};  // The end of the last read, or when the line began.
  Timers::Id line_timer_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::cache
