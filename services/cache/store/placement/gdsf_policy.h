#pragma once
// Greedy dual size frequency (Cherkasova, HP Labs TR 98-69, 1998): the block with the lowest
//
//     L + uses x seconds to compute it again / bytes
//
// goes, and L becomes its value, so that values of old uses fall behind. A block has the L of its
// last use, which a short history of L over time gives. O(log n). Not thread-safe.

#include <vector>

#include "services/cache/store/placement/candidate_heap.h"
#include "services/cache/store/placement/eviction_policy.h"

namespace cairn::cache {

class GdsfPolicy final : public EvictionPolicy {
 public:
  void Enter(TierKind tier, CandidateId id, const BlockUse& use) override;
  void Exit(TierKind tier, CandidateId id) override;
  std::optional<CandidateId> Victim(TierKind tier) override;
  bool Spare(TierKind tier, CandidateId id, const BlockUse& use) override;
  void Evict(TierKind tier, const BlockKey& key) override;
  size_t MemoryBytes() const override;

 private:
  // L from a tick on.
  struct Level {
    uint32_t from;
    double level;
  };
  struct Order {
    CandidateHeap heap;
    std::vector<uint32_t> positions;  // By candidate.
    std::vector<Level> levels;        // Both rise.
    double level = 0;
  };

  uint64_t RankOf(const Order& order, const BlockUse& use);
  static double LevelAt(const Order& order, uint32_t tick);

  ByTier<Order> orders_;
  uint32_t now_ = 0;        // The latest use that it saw.
  double known_costs_ = 0;  // The costs of the blocks whose cost is known, per byte.
  double known_blocks_ = 0;
};

}  // namespace cairn::cache
