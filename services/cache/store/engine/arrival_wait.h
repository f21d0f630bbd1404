#pragma once
// A match that waits for blocks that somebody writes, and is then answered like any other.
//
//   Match, wait > 0 ─► further ─► Find ─► the first block that is not here, but has a writer
//                                          ├─ stored: on to the next one ─┐
//                                          ├─ all writers have left it    ├─► Match again ─► done
//                                          └─ timer: waited long enough ──┘
//
// It holds no lease, no pin and no thread while it waits. Thread-safe, but for Find, which is
// called once.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/concurrency/timers.h"
#include "services/cache/store/engine/read_path.h"
#include "services/cache/store/state/arrivals.h"

namespace cairn::cache {

class ArrivalWait final : public FurtherMatch,
                          public Arrivals::Waiter,
                          public std::enable_shared_from_this<ArrivalWait> {
 public:
  // Null: there is nothing to wait for, or no room to wait. All that is pointed to is the engine's,
  // or outlives it. REQUIRES: the request was checked, and waits.
  static std::shared_ptr<FurtherMatch> Begin(ReadPath* reads, NodeContext* context, Timers* timers,
                                             const MatchRequest& request, const NamespacePtr& ns);

  ArrivalWait(ReadPath* reads, NodeContext* context, Timers* timers, const MatchRequest& request,
              NamespacePtr ns, Arrivals::Place place, MemoryCharge memory);

  void Find(TimePoint deadline, Done done) override;
  void Wake() override;

 private:
  // The keys that are waited for, in order.
  std::span<const BlockKey> awaited() const { return request_.joint.asked() ? of_pool_0_ : keys_; }
  // Goes over blocks that are here. False: the next one is written, and this waits for it.
  bool Advance();
  void Finish();

  ReadPath& reads_;
  NodeContext& context_;
  Timers& timers_;
  // Its spans and views point to the copies below.
  MatchRequest request_;
  const std::vector<BlockKey> keys_;
  const std::vector<BlockKey> of_pool_0_;  // For a match over pools.
  const std::vector<std::string> holders_;
  const std::string trace_;
  const TimePoint begin_;
  const uint32_t target_;  // Blocks that are waited for.
  TimePoint deadline_;     // The deadline of the whole answer.

  Mutex mu_;
  NamespacePtr ns_ ABSL_GUARDED_BY(mu_);
  uint32_t here_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<Arrivals::Place> place_ ABSL_GUARDED_BY(mu_);
  MemoryCharge memory_ ABSL_GUARDED_BY(mu_);
  std::optional<InFlight::Token> token_ ABSL_GUARDED_BY(mu_);  // While the engine is still used.
  Timers::Id timer_ ABSL_GUARDED_BY(mu_) = 0;
  Done done_ ABSL_GUARDED_BY(mu_);  // Empty before the question and after the answer.
};

}  // namespace cairn::cache
