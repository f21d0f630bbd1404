#pragma once
// S3-FIFO (Yang, Zhang, Qiu, Yue, Vinayak, "FIFO queues are all you need for cache eviction", SOSP
// 2023): new blocks wait in a small queue, and only those that are used twice there, or that come
// back soon after they left, get into the main queue.
//
// The paper queues objects; here the queues hold candidates, the last blocks of paths. A block that
// becomes a candidate when those behind it went has its place by its last use. 20 bytes a
// candidate, 8 for each block that is remembered. O(log n). Not thread-safe.

#include <vector>

#include "common/hash/keyed_hash.h"
#include "services/cache/store/placement/candidate_heap.h"
#include "services/cache/store/placement/eviction_policy.h"
#include "services/cache/store/placement/group_memory.h"

namespace cairn::cache {

class S3FifoPolicy final : public EvictionPolicy {
 public:
  explicit S3FifoPolicy(uint64_t seed) : hash_(seed) {}
  bool Learns() const override { return true; }
  uint8_t Stored(const BlockKey& key, std::optional<uint8_t> parent_group, uint32_t now) override;
  void Left(const BlockKey& key, const BlockUse& use) override;

  void Enter(TierKind tier, CandidateId id, const BlockUse& use) override;
  void Exit(TierKind tier, CandidateId id) override;
  std::optional<CandidateId> Victim(TierKind tier) override;
  bool Spare(TierKind tier, CandidateId id, const BlockUse& use) override;
  void Evict(TierKind, const BlockKey&) override {}
  size_t MemoryBytes() const override;

 private:
  // Groups of blocks.
  static constexpr uint8_t kNew = 0;
  static constexpr uint8_t kCameBack = 1;
  struct Place {
    uint32_t position = CandidateHeap::kNotInHeap;
    uint8_t uses = 0;  // Uses that counted already.
    bool main = false;
  };
  struct Order {
    CandidateHeap queues[2];    // Small, main: by the time of entry.
    std::vector<Place> places;  // By candidate.
  };

  void Put(Order* order, CandidateId id, bool main, uint64_t rank);

  const KeyedHash hash_;
  ByTier<Order> orders_;
  GroupMemory memory_;
  uint64_t blocks_ = 0;
  uint32_t now_ = 0;
};

}  // namespace cairn::cache
