#pragma once
// The part of a match that a source may know: one question with a deadline.
//
//   Match ─► local answer, further ─► Find ─► source.Locate ─┬─ answer ───┐
//                                        └──► timer ─────────┴─ deadline ─┴─► done, once
//
// Nobody waits on a thread. An answer that comes after the deadline is dropped. Thread-safe, but
// for Find, which is called once.

#include <memory>
#include <optional>
#include <utility>

#include "common/concurrency/timers.h"
#include "services/cache/store/engine/read_path.h"
#include "services/cache/store/source/block_source.h"

namespace cairn::cache {

class SourceLookup final : public FurtherMatch, public std::enable_shared_from_this<SourceLookup> {
 public:
  // All that is pointed to is the engine's, or outlives it.
  SourceLookup(ReadPath* reads, NodeContext* context, BlockSource* source, Timers* timers,
               LocalMatch local)
      : reads_(*reads),
        context_(*context),
        source_(*source),
        timers_(*timers),
        fingerprint_(local.ns->fingerprint),
        local_(std::move(local)) {}
  // Counts the local answer as the whole one if nobody asked for more.
  ~SourceLookup() override;

  void Find(TimePoint deadline, Done done) override;

 private:
  void Finish(const Result<Located>& located);

  ReadPath& reads_;
  NodeContext& context_;
  BlockSource& source_;
  Timers& timers_;
  const Fingerprint fingerprint_;
  // Its `rest` stays until the source has answered. The others go with the answer to the caller.
  LocalMatch local_;
  bool asked_ = false;
  Mutex mu_;
  std::optional<InFlight::Token> token_ ABSL_GUARDED_BY(mu_);  // While the engine is still used.
  Timers::Id timer_ ABSL_GUARDED_BY(mu_) = 0;
  Done done_ ABSL_GUARDED_BY(mu_);  // Empty before the question and after the answer.
};

}  // namespace cairn::cache
