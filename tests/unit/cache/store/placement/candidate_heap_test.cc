#include "services/cache/store/placement/candidate_heap.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace cairn::cache {
namespace {

TEST(CandidateHeapTest, RandomOperationsKeepTheLowestOnTop) {
  constexpr uint32_t kSeed = 7;
  std::mt19937 rng(kSeed);
  CandidateHeap heap;
  std::map<uint32_t, uint64_t> ranks;
  std::map<uint32_t, uint32_t> positions;
  const auto set = [&](uint32_t id, uint32_t position) { positions[id] = position; };
  for (int step = 0; step < 20000; ++step) {
    const uint32_t id = rng() % 200;
    const uint64_t rank = rng() % 1000;
    if (!ranks.contains(id)) {
      heap.Push(id, rank, set);
      ranks[id] = rank;
    } else if (rng() % 2 == 0) {
      heap.Update(positions[id], rank, set);
      ranks[id] = rank;
    } else {
      heap.Remove(positions[id], set);
      EXPECT_EQ(positions[id], CandidateHeap::kNotInHeap);
      ranks.erase(id);
    }
    ASSERT_EQ(heap.size(), ranks.size());
    if (ranks.empty()) continue;
    uint64_t lowest = UINT64_MAX;
    for (const auto& [i, r] : ranks) lowest = std::min(lowest, r);
    ASSERT_EQ(heap.top().rank, lowest) << "seed " << kSeed << " step " << step;
    ASSERT_EQ(ranks[heap.top().id], lowest);
    ASSERT_EQ(positions[heap.top().id], 0u);
  }
}

}  // namespace
}  // namespace cairn::cache
