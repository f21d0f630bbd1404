#include "services/cache/store/placement/gdsf_policy.h"

#include <algorithm>
#include <bit>

namespace cairn::cache {
namespace {

// When the history of L is longer, every second entry is left out.
constexpr size_t kMaxLevels = 4096;

}  // namespace

double GdsfPolicy::LevelAt(const Order& order, uint32_t tick) {
  const auto after = std::upper_bound(order.levels.begin(), order.levels.end(), tick,
                                      [](uint32_t t, const Level& l) { return t < l.from; });
  return after == order.levels.begin() ? 0 : std::prev(after)->level;
}

uint64_t GdsfPolicy::RankOf(const Order& order, const BlockUse& use) {
  const double bytes = std::max<double>(use.bytes, 1);
  double cost = use.recompute_seconds / bytes;
  if (cost > 0) {
    known_costs_ += cost;
    ++known_blocks_;
  } else {
    // As the others cost, and if nobody knows, all cost the same.
    cost = known_blocks_ > 0 ? known_costs_ / known_blocks_ : 1 / bytes;
  }
  // Numbers that are not negative have the order of their bits.
  return std::bit_cast<uint64_t>(LevelAt(order, use.last_use) + (use.uses + 1) * cost);
}

void GdsfPolicy::Enter(TierKind tier, CandidateId id, const BlockUse& use) {
  Order& order = orders_[tier];
  now_ = std::max(now_, use.last_use);
  if (id >= order.positions.size()) order.positions.resize(id + 1, CandidateHeap::kNotInHeap);
  const auto move = [&order](uint32_t i, uint32_t at) { order.positions[i] = at; };
  const uint32_t position = order.positions[id];
  if (position == CandidateHeap::kNotInHeap) {
    order.heap.Push(id, RankOf(order, use), move);
  } else {
    order.heap.Update(position, RankOf(order, use), move);
  }
}

void GdsfPolicy::Exit(TierKind tier, CandidateId id) {
  Order& order = orders_[tier];
  order.heap.Remove(order.positions[id],
                    [&order](uint32_t i, uint32_t at) { order.positions[i] = at; });
  if (order.heap.empty()) order.positions = {};
}

std::optional<CandidateId> GdsfPolicy::Victim(TierKind tier) {
  const Order& order = orders_[tier];
  if (order.heap.empty()) return std::nullopt;
  return order.heap.top().id;
}

bool GdsfPolicy::Spare(TierKind tier, CandidateId id, const BlockUse& use) {
  Order& order = orders_[tier];
  const uint64_t rank = RankOf(order, use);
  if (rank <= order.heap.top().rank) return false;
  Enter(tier, id, use);
  return true;
}

void GdsfPolicy::Evict(TierKind tier, const BlockKey&) {
  Order& order = orders_[tier];
  const double level = std::bit_cast<double>(order.heap.top().rank);
  if (level <= order.level) return;
  order.level = level;
  if (!order.levels.empty() && order.levels.back().from == now_) {
    order.levels.back().level = level;
    return;
  }
  if (order.levels.size() >= kMaxLevels) {
    for (size_t i = 0; i < kMaxLevels / 2; ++i) order.levels[i] = order.levels[2 * i + 1];
    order.levels.resize(kMaxLevels / 2);
  }
  order.levels.push_back({now_, level});
}

size_t GdsfPolicy::MemoryBytes() const {
  size_t total = sizeof(*this);
  for (const Order& order : orders_) {
    total += order.heap.MemoryBytes() + order.positions.capacity() * sizeof(uint32_t) +
             order.levels.capacity() * sizeof(Level);
  }
  return total;
}

}  // namespace cairn::cache
