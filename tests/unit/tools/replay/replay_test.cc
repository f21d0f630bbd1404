#include "tools/cairn/replay/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <list>
#include <unordered_map>

#include "tests/support/generated_traces.h"

namespace cairn::cli::replay {
namespace {

using cache::EvictionKind;

constexpr uint64_t kMillion = 1'000'000;
// Capacities at which docs/operate/scheduling.md compares policies, and what an optimal one hits
// there.
constexpr uint64_t kCapacities[] = {1 * kMillion, 3 * kMillion, 6 * kMillion, 12 * kMillion};

const Trace& Conversations() {
  static const Trace trace = [] {
    std::ifstream in("tests/data/traces/conversation_trace.jsonl");
    auto read = ReadTrace(in, "conversation_trace.jsonl", 512);
    EXPECT_TRUE(read.ok()) << Message(read.status());
    return *std::move(read);
  }();
  return trace;
}

double HitRate(const Trace& trace, EvictionKind policy, uint64_t capacity) {
  return Replay(trace, {.policy = policy, .capacity_tokens = capacity}).HitRateBlocks();
}

// How much of what lies between LRU and the optimum a policy gets, mean of the four capacities.
double GapClosed(const Trace& trace, EvictionKind policy) {
  double sum = 0;
  for (const uint64_t capacity : kCapacities) {
    const double lru = HitRate(trace, EvictionKind::kLru, capacity);
    const double best = ReplayOptimum(trace, capacity).HitRateBlocks();
    sum += (HitRate(trace, policy, capacity) - lru) / (best - lru);
  }
  return sum / std::size(kCapacities);
}

// A list of blocks in the order of use, without any of the product's code.
double NaiveLru(const Trace& trace, size_t capacity) {
  std::list<uint32_t> order;  // The latest first.
  std::unordered_map<uint32_t, std::list<uint32_t>::iterator> places;
  uint64_t hits = 0;
  for (const TraceRequest& request : trace.requests) {
    size_t matched = 0;
    while (matched < request.blocks.size() && places.contains(request.blocks[matched])) ++matched;
    hits += matched;
    // The last block leaves first.
    for (size_t at = request.blocks.size(); at-- > 0;) {
      const uint32_t block = request.blocks[at];
      if (const auto place = places.find(block); place != places.end()) order.erase(place->second);
      order.push_front(block);
      places[block] = order.begin();
    }
    while (order.size() > capacity) {
      places.erase(order.back());
      order.pop_back();
    }
  }
  return static_cast<double>(hits) / static_cast<double>(trace.blocks);
}

TEST(ReplayTest, LruHitsWhatANaiveListHits) {
  for (const uint64_t capacity : kCapacities) {
    EXPECT_NEAR(HitRate(Conversations(), EvictionKind::kLru, capacity),
                NaiveLru(Conversations(), capacity / 512), 0.0005);
  }
}

TEST(ReplayTest, NobodyExceedsTheOptimum) {
  for (const uint64_t capacity : kCapacities) {
    const double best = ReplayOptimum(Conversations(), capacity).HitRateBlocks();
    for (const EvictionKind kind : cache::kEvictionKinds) {
      EXPECT_LT(HitRate(Conversations(), kind, capacity), best) << Name(kind);
    }
  }
}

TEST(ReplayTest, CairnClosesPartOfTheGapBetweenLruAndTheOptimum) {
  EXPECT_GT(GapClosed(Conversations(), EvictionKind::kCairn), 0.15);
}

TEST(ReplayTest, HintsForHalfOfTheRequestsCloseHalfOfIt) {
  Trace hinted = Conversations();
  AddHints(&hinted, 50);
  EXPECT_GT(GapClosed(hinted, EvictionKind::kCairn), 0.45);
  // Policies that do not read hints are as before.
  EXPECT_EQ(HitRate(hinted, EvictionKind::kLru, kMillion),
            HitRate(Conversations(), EvictionKind::kLru, kMillion));
}

// A client that hints the opposite of what it does gets less than without hints, but not much less
// than LRU: what hints are worth is learned.
TEST(ReplayTest, LiesAreFoundOut) {
  Trace lies = Conversations();
  AddHints(&lies, 100);
  for (TraceRequest& request : lies.requests) {
    request.next = request.next == NextUse::kNever ? NextUse::kSoon : NextUse::kNever;
  }
  for (const uint64_t capacity : kCapacities) {
    EXPECT_GT(HitRate(lies, EvictionKind::kCairn, capacity),
              HitRate(lies, EvictionKind::kLru, capacity) - 0.01);
  }
}

TEST(ReplayTest, CairnIsNotWorseThanLruOnOtherWorkloads) {
  for (const auto& [name, trace] : testing::GenerateTraces(/*seed=*/100)) {
    for (const uint64_t capacity : kCapacities) {
      EXPECT_GT(HitRate(trace, EvictionKind::kCairn, capacity),
                HitRate(trace, EvictionKind::kLru, capacity) - 0.002)
          << name << ", " << capacity << " tokens";
    }
  }
}

TEST(ReplayTest, CountsWhatHappened) {
  const auto result =
      Replay(Conversations(), {.policy = EvictionKind::kLru, .capacity_tokens = kMillion});
  EXPECT_EQ(result.requests, Conversations().requests.size());
  EXPECT_EQ(result.blocks, Conversations().blocks);
  EXPECT_EQ(result.tokens, Conversations().tokens);
  EXPECT_GT(result.HitRateTokens(), 0);
  EXPECT_LT(result.HitRateTokens(), 1);
  EXPECT_GT(result.seconds_saved, 0);
  // Blocks that were stored and are not here any more.
  EXPECT_GT(result.evictions, result.blocks - result.hit_blocks - kMillion / 512 - 1);
  EXPECT_EQ(result.disk_writes, 0u);
}

TEST(ReplayTest, ADiskBelowTheHostTierAddsHits) {
  const ReplayOptions host = {.policy = EvictionKind::kCairn, .capacity_tokens = kMillion};
  ReplayOptions both = host;
  both.disk_tokens = 6 * kMillion;
  const auto result = Replay(Conversations(), both);
  EXPECT_GT(result.HitRateBlocks(), Replay(Conversations(), host).HitRateBlocks() + 0.05);
  EXPECT_GT(result.disk_writes, 0u);
  EXPECT_LE(result.disk_writes, result.blocks);
}

TEST(ReplayTest, ARequestThatIsLargerThanTheTierKeepsItsBeginning) {
  Trace trace;
  trace.block_tokens = 512;
  trace.distinct_blocks = 20;
  for (int i = 0; i < 2; ++i) {
    TraceRequest request{.seconds = 10.0 * i, .input_tokens = 20 * 512, .blocks = {}};
    for (uint32_t block = 0; block < 20; ++block) request.blocks.push_back(block);
    trace.requests.push_back(std::move(request));
    trace.blocks += 20;
    trace.tokens += 20 * 512;
  }
  for (const EvictionKind kind : cache::kEvictionKinds) {
    const auto result = Replay(trace, {.policy = kind, .capacity_tokens = 8 * 512});
    EXPECT_GE(result.hit_blocks, 7u) << Name(kind);
  }
}

}  // namespace
}  // namespace cairn::cli::replay
