#include "services/cache/store/placement/cairn/cairn_policy.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace cairn::cache {
namespace {

// Blocks that a namespace stores before it learns.
constexpr uint64_t kLearnsFrom = 1024;
// Requests after which what was counted weighs half.
constexpr double kHalfLife = 6000;
// A block is fresh for half a second.
constexpr uint32_t kFreshTicks = 30;
constexpr int64_t kSlotsPerLesson = 16;
// Entries of the memory of blocks that left, for each block that is here.
constexpr size_t kRememberedPerBlock = 8;

// Groups of blocks that were asked for and are about to be stored, by their keys. A few get lost
// when two fall on one place, and then the group of the block before counts. Keys are hashes
// already: a client that chooses some which collide only loses the groups of its own namespace.
class Arrivals {
 public:
  void Expect(const BlockKey& key, BlockGroup group) {
    const uint64_t hash = BitsOf(key);
    places_[hash % kPlaces] = {Tag(hash), group, true};
  }
  std::optional<BlockGroup> Take(const BlockKey& key) {
    const uint64_t hash = BitsOf(key);
    Place& place = places_[hash % kPlaces];
    if (!place.full || place.tag != Tag(hash)) return std::nullopt;
    place.full = false;
    return place.group;
  }

 private:
  static constexpr size_t kPlaces = 1024;
  struct Place {
    uint32_t tag = 0;
    BlockGroup group = 0;
    bool full = false;
  };
  static uint32_t Tag(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }
  static uint64_t BitsOf(const BlockKey& key) {
    uint64_t first, third;
    std::memcpy(&first, key.bytes.data(), sizeof(first));
    std::memcpy(&third, key.bytes.data() + 16, sizeof(third));
    return first ^ third;
  }

  std::array<Place, kPlaces> places_{};
};

}  // namespace

struct CairnPolicy::Learner {
  using Cells = std::array<uint32_t, AgeCells::kCells>;

  uint32_t& Known(BlockGroup group, int cell) { return known[group][static_cast<size_t>(cell)]; }
  void Add(BlockGroup group, int cell, uint32_t count) {
    Known(group, cell) += count;
    blocks_of[group] += count;
  }
  // Blocks from before the learner began are not known.
  void Remove(BlockGroup group, int cell, uint32_t count) {
    uint32_t& known_blocks = Known(group, cell);
    count = std::min(known_blocks, count);
    known_blocks -= count;
    blocks_of[group] -= count;
  }

  // Blocks by group and time of last use, remembered ones included.
  std::array<Cells, kGroupCount> known{};
  std::array<uint32_t, kGroupCount> blocks_of{};  // In all cells.
  HitDensity density;
  GroupMemory memory;
  Arrivals arrivals;
  uint64_t blocks = 0;  // Alive.
  uint32_t requests = 0;
  int64_t learned_at = 0;
};

CairnPolicy::CairnPolicy(uint64_t seed) : hash_(seed) {}
CairnPolicy::~CairnPolicy() = default;

// The tick of a remembered slot: the last time with these low bits.
static uint32_t TickOf(uint16_t slot, int64_t now_slot) {
  const auto age = static_cast<uint16_t>(static_cast<uint64_t>(now_slot) - slot);
  const int64_t since_start = now_slot - AgeCells::SlotOf(0) - age;
  return static_cast<uint32_t>(std::max<int64_t>(since_start, 0)) << AgeCells::kTicksPerSlotLog2;
}

void CairnPolicy::Advance(uint32_t now) {
  now_ = std::max(now_, now);
  const int64_t slot = AgeCells::SlotOf(now);
  if (slot <= cells_.now_slot()) return;
  const auto join = [this](int from, int into) {
    for (auto& candidates : candidates_) {
      if (candidates != nullptr) candidates->Join(from, into);
    }
    if (learner_ == nullptr) return;
    for (auto& known : learner_->known) {
      known[static_cast<size_t>(into)] += known[static_cast<size_t>(from)];
      known[static_cast<size_t>(from)] = 0;
    }
  };
  if (slot - cells_.now_slot() > AgeCells::kSpan) {
    for (int cell = 0; cell < AgeCells::kOldest; ++cell) join(cell, AgeCells::kOldest);
    cells_.Restart(now);
  }
  while (cells_.now_slot() < slot) {
    cells_.Advance(join);
    if (learner_ == nullptr) continue;
    for (int group = 0; group < kGroupCount; ++group) {
      const auto g = static_cast<BlockGroup>(group);
      if (learner_->blocks_of[g] == 0) continue;
      for (int cell = 0; cell < AgeCells::kCells; ++cell) {
        const uint32_t blocks = learner_->Known(g, cell);
        if (blocks == 0) continue;
        learner_->density.AddExposure(g, cells_.BinOf(cell), static_cast<float>(blocks));
      }
    }
  }
  if (learner_ != nullptr && slot - learner_->learned_at >= kSlotsPerLesson) {
    learner_->learned_at = slot;
    if (learner_->requests > 0) {
      learner_->density.Decay(
          static_cast<float>(std::exp2(-static_cast<double>(learner_->requests) / kHalfLife)));
      learner_->requests = 0;
    }
    learner_->density.Learn();
  }
  for (auto& candidates : candidates_) {
    if (candidates != nullptr) candidates->Revalue();
  }
}

void CairnPolicy::BeginRequest(const MatchedRequest& request) {
  Advance(request.now);
  request_ = {.now = request.now};
  if (learner_ == nullptr || request.keys.empty()) return;
  Learner& learner = *learner_;
  ++learner.requests;
  // Blocks that left, but would have been used: they count as used at their age.
  const auto count = static_cast<uint32_t>(request.keys.size());
  uint32_t known = request.matched;
  BlockGroup last_group = request.last.group;
  uint32_t last_uses = request.last.uses;
  const uint32_t first_missing = known;
  for (; known < count; ++known) {
    const auto entry = learner.memory.Take(hash_(request.keys[known]));
    if (!entry) break;
    const uint32_t tick = TickOf(entry->slot, cells_.now_slot());
    const int cell = cells_.CellOf(tick);
    learner.Remove(entry->group, cell, 1);
    learner.density.AddUses(entry->group, cells_.BinOf(cell), 1);
    last_group = entry->group;
    last_uses = entry->uses;
  }
  const bool goes_on = known > 0 && !IsShared(last_group) && last_uses == 0;
  request_.branch = known > 0 && !goes_on;
  const uint32_t fresh = count - known;
  const int turn = goes_on ? MeaningOf(last_group).turn + (fresh > 0 ? 1 : 0) : 0;
  request_.group = RequestGroup(turn, fresh, request.next);
  if (first_missing < known) {
    learner.arrivals.Expect(request.keys[first_missing], GroupAfterUse(last_group, last_uses + 1));
  }
  if (known < count) {
    learner.arrivals.Expect(request.keys[known], request_.group);
    learner.arrivals.Expect(request.keys[count - 1], TailGroup(turn, request.next));
  }
}

BlockGroup CairnPolicy::GroupAfterUse(BlockGroup before, uint32_t uses) const {
  return request_.branch || IsShared(before) ? SharedGroup(uses) : request_.group;
}

uint8_t CairnPolicy::Used(const BlockUse& before, uint32_t count) {
  if (learner_ == nullptr) return before.group;
  const BlockGroup after = GroupAfterUse(before.group, before.uses + 1u);
  const int cell = cells_.CellOf(before.last_use);
  learner_->Remove(before.group, cell, count);
  learner_->density.AddUses(before.group, cells_.BinOf(cell), count);
  learner_->Add(after, cells_.CellOf(request_.now), count);
  return after;
}

uint8_t CairnPolicy::Stored(const BlockKey& key, std::optional<uint8_t> parent_group,
                            uint32_t now) {
  Advance(now);
  if (learner_ == nullptr) {
    if (++stored_ < kLearnsFrom) return kUnknownGroup;
    learner_ = std::make_unique<Learner>();
    learner_->learned_at = cells_.now_slot();
    learner_->blocks = stored_;
  }
  Learner& learner = *learner_;
  ++learner.blocks;
  learner.memory.Fit(kRememberedPerBlock * learner.blocks);
  auto group = learner.arrivals.Take(key);
  if (!group && parent_group && !IsShared(*parent_group)) group = parent_group;
  const BlockGroup result = group.value_or(kUnknownGroup);
  learner.Add(result, cells_.CellOf(now), 1);
  return result;
}

void CairnPolicy::Left(const BlockKey& key, const BlockUse& use) {
  if (learner_ == nullptr) {
    if (stored_ > 0) --stored_;
    return;
  }
  Learner& learner = *learner_;
  if (learner.blocks > 0) --learner.blocks;
  const int64_t slot = std::min(AgeCells::SlotOf(use.last_use), cells_.now_slot());
  const uint64_t hash = key == evicting_ ? evicting_hash_ : hash_(key);
  const auto forgotten = learner.memory.Put(hash, static_cast<uint16_t>(slot), use.group, use.uses,
                                            static_cast<uint16_t>(cells_.now_slot()));
  if (!forgotten) return;
  const uint32_t tick = TickOf(forgotten->slot, cells_.now_slot());
  learner.Remove(forgotten->group, cells_.CellOf(tick), 1);
}

float CairnPolicy::Density(BlockGroup group, int cell) const {
  const int bin = cells_.BinOf(cell);
  // Least recent use first, as long as nothing is known.
  if (learner_ == nullptr) return 1.0f / static_cast<float>(1 + bin);
  return learner_->density.Density(group, bin);
}

void CairnPolicy::File(TierKind tier, CandidateId id, uint32_t last_use, BlockGroup group) {
  auto& candidates = candidates_[tier];
  if (candidates == nullptr) candidates = std::make_unique<CandidateCells>();
  if (candidates->Contains(id)) candidates->Remove(id, cells_.CellOf(candidates->At(id).last_use));
  std::optional<int> cell;
  if (last_use + kFreshTicks <= now_) cell = cells_.CellOf(last_use);
  candidates->Add(id, last_use, group, cell, [this](BlockGroup g, int c) { return Density(g, c); });
}

// A block that is protected until a time in the future is filed as used now. When its turn comes
// before that time, it is spared and filed again.
bool CairnPolicy::Refile(TierKind tier, CandidateId id, const BlockUse& use) {
  const uint32_t last_use = std::min(use.last_use, now_);
  const auto& candidates = candidates_[tier];
  if (candidates != nullptr && candidates->Contains(id)) {
    const CandidateCells::Filed filed = candidates->At(id);
    if (filed.last_use == last_use && filed.group == use.group) return false;
  }
  File(tier, id, last_use, use.group);
  return true;
}

void CairnPolicy::Enter(TierKind tier, CandidateId id, const BlockUse& use) {
  (void)Refile(tier, id, use);
}

bool CairnPolicy::Spare(TierKind tier, CandidateId id, const BlockUse& use) {
  return Refile(tier, id, use);
}

void CairnPolicy::Exit(TierKind tier, CandidateId id) {
  CandidateCells& candidates = *candidates_[tier];
  candidates.Remove(id, cells_.CellOf(candidates.At(id).last_use));
}

std::optional<CandidateId> CairnPolicy::Victim(TierKind tier) {
  if (candidates_[tier] == nullptr) return std::nullopt;
  CandidateCells& candidates = *candidates_[tier];
  for (auto id = candidates.FirstFresh(); id; id = candidates.FirstFresh()) {
    const CandidateCells::Filed filed = candidates.At(*id);
    if (filed.last_use + kFreshTicks > now_) break;
    File(tier, *id, filed.last_use, filed.group);
  }
  return candidates.Lowest([this](BlockGroup group, int cell) { return Density(group, cell); });
}

// Left comes soon, and would wait for the memory.
void CairnPolicy::Evict(TierKind, const BlockKey& key) {
  if (learner_ == nullptr) return;
  evicting_ = key;
  evicting_hash_ = hash_(key);
  learner_->memory.Prefetch(evicting_hash_);
}

size_t CairnPolicy::MemoryBytes() const {
  size_t total = sizeof(*this);
  for (const auto& candidates : candidates_) {
    if (candidates != nullptr) total += sizeof(CandidateCells) + candidates->MemoryBytes();
  }
  if (learner_ != nullptr) {
    total += sizeof(Learner) + learner_->density.MemoryBytes() + learner_->memory.MemoryBytes();
  }
  return total;
}

std::optional<LearnedPlacement> CairnPolicy::Learned() const {
  LearnedPlacement learned;
  if (learner_ == nullptr) return learned;
  learned.remembered_blocks = learner_->memory.size();
  for (int group = 0; group < kGroupCount; ++group) {
    const auto g = static_cast<BlockGroup>(group);
    const uint64_t blocks = learner_->blocks_of[g];
    const double exposure = learner_->density.ExposureOf(g);
    if (blocks == 0 && exposure == 0) continue;
    learned.groups.push_back({.name = GroupName(g),
                              .uses = learner_->density.UsesOf(g),
                              .block_seconds = exposure * AgeCells::kSecondsPerSlot,
                              .blocks = blocks});
  }
  return learned;
}

}  // namespace cairn::cache
