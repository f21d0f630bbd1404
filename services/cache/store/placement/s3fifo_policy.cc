#include "services/cache/store/placement/s3fifo_policy.h"

#include <algorithm>

namespace cairn::cache {
namespace {

// The small queue gives the victim while it has more than this part of the candidates.
constexpr size_t kSmallPart = 10;
// Uses in the small queue that lead to the main queue.
constexpr uint8_t kUsesForMain = 2;
constexpr uint8_t kMostUses = 3;

// The memory of blocks that left compares times of last use.
uint16_t SlotOf(uint32_t tick) { return static_cast<uint16_t>(tick >> 7); }

}  // namespace

uint8_t S3FifoPolicy::Stored(const BlockKey& key, std::optional<uint8_t>, uint32_t now) {
  now_ = std::max(now_, now);
  memory_.Fit(++blocks_);
  return memory_.Take(hash_(key)) ? kCameBack : kNew;
}

void S3FifoPolicy::Left(const BlockKey& key, const BlockUse& use) {
  if (blocks_ > 0) --blocks_;
  (void)memory_.Put(hash_(key), SlotOf(use.last_use), 0, use.uses, SlotOf(now_));
}

void S3FifoPolicy::Put(Order* order, CandidateId id, bool main, uint64_t rank) {
  order->places[id].main = main;
  order->queues[main].Push(id, rank,
                           [order](uint32_t i, uint32_t at) { order->places[i].position = at; });
}

void S3FifoPolicy::Enter(TierKind tier, CandidateId id, const BlockUse& use) {
  Order& order = orders_[tier];
  if (id >= order.places.size()) order.places.resize(id + 1);
  Place& place = order.places[id];
  if (place.position != CandidateHeap::kNotInHeap) return;
  place.uses = 0;
  Put(&order, id, use.group == kCameBack, use.last_use);
}

void S3FifoPolicy::Exit(TierKind tier, CandidateId id) {
  Order& order = orders_[tier];
  order.queues[order.places[id].main].Remove(
      order.places[id].position,
      [&order](uint32_t i, uint32_t at) { order.places[i].position = at; });
  if (order.queues[0].empty() && order.queues[1].empty()) order.places = {};
}

std::optional<CandidateId> S3FifoPolicy::Victim(TierKind tier) {
  const Order& order = orders_[tier];
  const size_t small = order.queues[0].size(), main = order.queues[1].size();
  if (small + main == 0) return std::nullopt;
  const bool from_main = small == 0 || (main > 0 && small * kSmallPart <= small + main);
  return order.queues[from_main].top().id;
}

bool S3FifoPolicy::Spare(TierKind tier, CandidateId id, const BlockUse& use) {
  Order& order = orders_[tier];
  Place& place = order.places[id];
  const int uses = std::min<int>(use.uses - std::min(use.uses, place.uses), kMostUses);
  const bool stays = place.main ? uses > 0 : uses >= kUsesForMain;
  if (!stays) return false;
  const bool was_main = place.main;
  Exit(tier, id);
  if (id >= order.places.size()) order.places.resize(id + 1);
  // In the main queue, each round takes one use.
  order.places[id].uses = static_cast<uint8_t>(was_main ? use.uses - uses + 1 : use.uses);
  Put(&order, id, true, std::max<uint64_t>(use.last_use, now_));
  return true;
}

size_t S3FifoPolicy::MemoryBytes() const {
  size_t total = sizeof(*this) + memory_.MemoryBytes();
  for (const Order& order : orders_) {
    total += order.queues[0].MemoryBytes() + order.queues[1].MemoryBytes() +
             order.places.capacity() * sizeof(Place);
  }
  return total;
}

}  // namespace cairn::cache
