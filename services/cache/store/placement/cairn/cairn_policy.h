#pragma once
// The policy `cairn`: evicts where the expected hits per time of room are lowest (hit_density.h),
// by group of the block (block_group.h) and time since its last use (age_cells.h).
//
//   request -> group of its blocks     (turn, new blocks, shared beginning, hint of the client)
//   use     -> count at (group, age)   also of blocks that left, as long as they are remembered
//   time    -> exposure at (group, age)
//   every 34 seconds: densities from counts
//
// A namespace with few blocks learns nothing, since it would cost more memory than its blocks.
// Until then all blocks are of an unknown group, and the order is that of last use.
//
// The client's hints only sort its blocks into other groups. The worth of these groups is
// learned from what happens, so a hint that does not come true soon weighs nothing.
//
// Not thread-safe.

#include <array>
#include <memory>
#include <optional>

#include "common/hash/keyed_hash.h"
#include "services/cache/store/placement/cairn/candidate_cells.h"
#include "services/cache/store/placement/cairn/hit_density.h"
#include "services/cache/store/placement/eviction_policy.h"
#include "services/cache/store/placement/group_memory.h"

namespace cairn::cache {

class CairnPolicy final : public EvictionPolicy {
 public:
  explicit CairnPolicy(uint64_t seed);
  ~CairnPolicy() override;

  bool Learns() const override { return true; }
  void BeginRequest(const MatchedRequest& request) override;
  uint8_t Used(const BlockUse& before, uint32_t count) override;
  uint8_t Stored(const BlockKey& key, std::optional<uint8_t> parent_group, uint32_t now) override;
  void Left(const BlockKey& key, const BlockUse& use) override;

  void Enter(TierKind tier, CandidateId id, const BlockUse& use) override;
  void Exit(TierKind tier, CandidateId id) override;
  std::optional<CandidateId> Victim(TierKind tier) override;
  bool Spare(TierKind tier, CandidateId id, const BlockUse& use) override;
  void Evict(TierKind tier, const BlockKey& key) override;

  size_t MemoryBytes() const override;
  std::optional<LearnedPlacement> Learned() const override;

 private:
  struct Learner;
  // The request whose blocks come.
  struct Request {
    BlockGroup group = kUnknownGroup;
    bool branch = false;  // Begins a conversation: what it found is a shared beginning.
    uint32_t now = 0;
  };

  void Advance(uint32_t now);
  float Density(BlockGroup group, int cell) const;
  void File(TierKind tier, CandidateId id, uint32_t last_use, BlockGroup group);
  bool Refile(TierKind tier, CandidateId id, const BlockUse& use);
  BlockGroup GroupAfterUse(BlockGroup before, uint32_t uses) const;

  const KeyedHash hash_;
  uint32_t now_ = 0;     // The latest tick that it saw.
  uint64_t stored_ = 0;  // Blocks, until the learner begins.
  std::unique_ptr<Learner> learner_;
  Request request_;
  ByTier<std::unique_ptr<CandidateCells>> candidates_;
  AgeCells cells_{0};
  BlockKey evicting_{};  // The block of the last Evict, and its hash.
  uint64_t evicting_hash_ = 0;
};

}  // namespace cairn::cache
