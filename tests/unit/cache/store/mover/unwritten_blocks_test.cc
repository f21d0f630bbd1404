#include "services/cache/store/mover/unwritten_blocks.h"

#include <gtest/gtest.h>

#include <future>
#include <map>
#include <random>
#include <set>

#include "common/status/matchers.h"

namespace cairn::cache {
namespace {

using std::chrono::seconds;
using Wait = UnwrittenBlocks::Wait;
using Review = UnwrittenBlocks::Review;

constexpr uint64_t kBytes = 100;
constexpr uint64_t kRoomBytes = 1 << 20;

class UnwrittenBlocksTest : public ::testing::Test {
 protected:
  static BlockKey Key(uint8_t n) {
    BlockKey key;
    key.bytes[0] = n;
    return key;
  }
  static NamespaceSpec Spec() {
    NamespaceSpec spec;
    spec.model = "m";
    spec.revision = "1";
    spec.numerics = "f32";
    spec.layout.form = OpaqueLayout{"x", 100, 1};
    return spec;
  }
  NamedBlock Block(uint8_t n) const { return {ns_, Key(n)}; }
  DeclinedBlock Declined(uint8_t n) const { return {.ns = ns_, .key = Key(n), .bytes = kBytes}; }
  bool Add(uint8_t n, uint64_t room_bytes = kRoomBytes) {
    return blocks_.Add(Block(n), kBytes, {kCommon, kBytes}, room_bytes);
  }
  // The block that is to be copied next; its copy is then under way. -1: none is.
  int Pop(bool ignore_pauses = false) {
    blocks_.Fill(&queue_, ignore_pauses);
    const auto move = queue_.Pop();
    return move ? move->key.bytes[0] : -1;
  }
  void Done(uint8_t n) { queue_.Done({ns_, Key(n)}); }
  uint64_t Begin(uint8_t n) { return blocks_.Begin(Block(n)).sequence; }
  // The next block, whose copy has begun.
  uint64_t Start(uint8_t n) {
    EXPECT_EQ(Pop(), n);
    return Begin(n);
  }
  // A block that is parked after one failed copy.
  void Park(uint8_t n) {
    Add(n);
    const uint64_t sequence = Start(n);
    Done(n);
    blocks_.Park(Block(n), sequence);
  }
  Status Await(UnwrittenBlocks::Flush* flush) {
    return blocks_.EndFlush(flush, {.deadline = clock_.Now()});
  }

  NamespacePtr ns_ =
      std::make_shared<NamespaceState>(StoredNamespace::Of(Spec()), 1, EvictionKind::kLru, 1);
  FakeClock clock_;
  MoveQueue queue_{{.capacity = 64, .max_under_way = 64}};
  UnwrittenBlocks blocks_{&clock_};
};

TEST_F(UnwrittenBlocksTest, TheOldestGoesFirst) {
  for (const uint8_t n : {3, 1, 2}) Add(n);
  EXPECT_EQ(blocks_.bytes(), 3 * kBytes);
  EXPECT_EQ(blocks_.depth(), 3u);
  for (const int n : {3, 1, 2}) EXPECT_EQ(Pop(), n);
  EXPECT_EQ(Pop(), -1);
  EXPECT_EQ(blocks_.depth(), 0u);
}

TEST_F(UnwrittenBlocksTest, WhatEndsHasNoBytesAnyMore) {
  Add(1);
  clock_.Advance(seconds(2));
  const uint64_t sequence = Start(1);
  EXPECT_EQ(blocks_.End(Block(1), sequence), seconds(2));
  EXPECT_EQ(blocks_.bytes(), 0u);
  EXPECT_EQ(blocks_.End(Block(1), sequence), std::nullopt);
}

TEST_F(UnwrittenBlocksTest, WhatIsAddedAgainDuringItsCopyIsCopiedAgain) {
  Add(1);
  const uint64_t sequence = Start(1);
  Add(1);
  EXPECT_EQ(Pop(), -1);  // The queue takes it for the move under way.
  Done(1);
  EXPECT_EQ(blocks_.End(Block(1), sequence), std::nullopt);
  EXPECT_EQ(blocks_.bytes(), kBytes);
  EXPECT_NE(Start(1), sequence);
}

TEST_F(UnwrittenBlocksTest, ATenantThatHasItsShareGetsNoMore) {
  EXPECT_TRUE(Add(1, 4 * kBytes));
  EXPECT_FALSE(Add(2, 4 * kBytes));
  EXPECT_EQ(blocks_.bytes(), kBytes);
  blocks_.End(Block(1), Start(1));
  EXPECT_TRUE(Add(2, 4 * kBytes));
}

TEST_F(UnwrittenBlocksTest, AFailedCopyWaitsForItsPauseAndHasABoundedNumberOfAttempts) {
  Add(1);
  for (int i = 1; i < UnwrittenBlocks::kMaxAttempts; ++i) {
    const uint64_t sequence = Start(1);
    Done(1);
    EXPECT_TRUE(blocks_.Fail(Block(1), sequence, /*for_room=*/false).again);
    blocks_.Postpone(Block(1), sequence, seconds(1), Wait::kFault);
    EXPECT_EQ(Pop(), -1);
    clock_.Advance(seconds(1));
  }
  EXPECT_FALSE(blocks_.Fail(Block(1), Start(1), false).again);
}

TEST_F(UnwrittenBlocksTest, AFullTargetIsAskedLessOften) {
  Add(1);
  const uint64_t sequence = Begin(1);
  for (int i = 1; i < UnwrittenBlocks::kMaxAttemptsForRoom; ++i) {
    EXPECT_TRUE(blocks_.Fail(Block(1), sequence, /*for_room=*/true).again);
  }
  EXPECT_FALSE(blocks_.Fail(Block(1), sequence, true).again);
}

TEST_F(UnwrittenBlocksTest, OneParkedBlockIsTriedFromTimeToTime) {
  Park(1);
  Park(2);
  clock_.Advance(seconds(10));
  blocks_.ProbeParked();
  blocks_.ProbeParked();
  const uint64_t sequence = Start(1);
  EXPECT_EQ(Pop(), -1);
  const auto failure = blocks_.Fail(Block(1), sequence, false);
  EXPECT_TRUE(failure.parked_before);
  EXPECT_FALSE(failure.again);
  clock_.Advance(UnwrittenBlocks::kProbeEvery);
  blocks_.ProbeParked();
  EXPECT_EQ(Pop(), 2);
}

TEST_F(UnwrittenBlocksTest, ASuccessBringsParkedBlocksBack) {
  for (uint8_t n = 1; n <= 3; ++n) Park(n);
  blocks_.Unpark();
  for (int n = 1; n <= 3; ++n) EXPECT_EQ(Pop(), n);
}

TEST_F(UnwrittenBlocksTest, ADeclinedBlockIsReviewedUntilItIsPutInLineOrGone) {
  Add(1);
  blocks_.Decline(Declined(1), Start(1));
  Done(1);
  blocks_.AddDeclined(Declined(2));
  const auto some = blocks_.DeclinedToReview();
  ASSERT_EQ(some.size(), 2u);
  ASSERT_TRUE(blocks_.TakeShare(*ns_, {kCommon, kBytes}, kRoomBytes));
  blocks_.EndReview(some[0].first, *ns_, Review::kPutInLine, {kCommon, kBytes});
  blocks_.EndReview(some[1].first, *ns_, Review::kStays, {});
  EXPECT_EQ(Pop(), 1);
  const auto rest = blocks_.DeclinedToReview();
  ASSERT_EQ(rest.size(), 1u);
  blocks_.EndReview(rest[0].first, *ns_, Review::kGone, {});
  EXPECT_TRUE(blocks_.DeclinedToReview().empty());
}

TEST_F(UnwrittenBlocksTest, ReviewsGoRoundAllThatIsDeclined) {
  for (size_t i = 0; i < UnwrittenBlocks::kAtOnce + 10; ++i) blocks_.AddDeclined(Declined(1));
  EXPECT_EQ(blocks_.DeclinedToReview().size(), UnwrittenBlocks::kAtOnce);
  EXPECT_EQ(blocks_.DeclinedToReview().size(), 10u);
  EXPECT_EQ(blocks_.DeclinedToReview().size(), UnwrittenBlocks::kAtOnce);
}

TEST_F(UnwrittenBlocksTest, AFlushDuringAReviewFindsWhatIsReviewed) {
  blocks_.AddDeclined(Declined(1));
  const auto some = blocks_.DeclinedToReview();
  ASSERT_TRUE(blocks_.TakeShare(*ns_, {kCommon, kBytes}, kRoomBytes));
  UnwrittenBlocks::Flush flush;
  blocks_.BeginFlush(&flush, /*last=*/false);
  blocks_.EndReview(some[0].first, *ns_, Review::kPutInLine, {kCommon, kBytes});
  EXPECT_EQ(Await(&flush).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(blocks_.bytes(), kBytes);  // Once.
  blocks_.End(Block(1), Start(1));
  EXPECT_EQ(Pop(), -1);
  EXPECT_TRUE(Add(2, kBytes));  // The share of the review was given back.
}

TEST_F(UnwrittenBlocksTest, AFlushWaitsForAllThatWasThereAndNotForMore) {
  Park(2);
  Add(1);
  blocks_.AddDeclined(Declined(3));
  UnwrittenBlocks::Flush flush;
  blocks_.BeginFlush(&flush, /*last=*/false);
  Add(4);
  for (const uint8_t n : {1, 2, 3}) {
    const auto known = blocks_.Begin(Block(n));
    EXPECT_TRUE(known.flushed);
    EXPECT_FALSE(known.unlimited);
  }
  EXPECT_FALSE(blocks_.Begin(Block(4)).flushed);
  auto done = std::async(std::launch::async, [&] {
    return blocks_.EndFlush(&flush, {.deadline = clock_.Now() + seconds(1000)});
  });
  for (const uint8_t n : {1, 2, 3}) blocks_.End(Block(n), Begin(n));
  EXPECT_OK(done.get());
}

TEST_F(UnwrittenBlocksTest, AFlushSaysHowManyBlocksTheTargetDidNotTake) {
  Add(1);
  Add(2);
  UnwrittenBlocks::Flush flush;
  blocks_.BeginFlush(&flush, /*last=*/false);
  blocks_.Park(Block(1), Begin(1));
  blocks_.End(Block(2), Begin(2));
  const Status status = Await(&flush);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(Message(status), "flush: 1 blocks could not be written to disk");
}

TEST_F(UnwrittenBlocksTest, ACancelledFlushEnds) {
  Add(1);
  UnwrittenBlocks::Flush flush;
  blocks_.BeginFlush(&flush, /*last=*/false);
  const Status status = blocks_.EndFlush(
      &flush, {.deadline = clock_.Now() + seconds(1000), .cancelled = [] { return true; }});
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_FALSE(blocks_.Begin(Block(1)).flushed);
}

TEST_F(UnwrittenBlocksTest, WhatAFlushBeganToWaitForIsNotDeclined) {
  Add(1);
  const uint64_t sequence = Start(1);
  Done(1);
  UnwrittenBlocks::Flush flush;
  blocks_.BeginFlush(&flush, /*last=*/false);
  EXPECT_EQ(blocks_.Decline(Declined(1), sequence), std::nullopt);
  EXPECT_EQ(Start(1), sequence);
  EXPECT_TRUE(blocks_.DeclinedToReview().empty());
  EXPECT_EQ(Await(&flush).code(), StatusCode::kDeadlineExceeded);
}

TEST_F(UnwrittenBlocksTest, FlushesShortenThePausesThatTheyMay) {
  Add(1);
  const uint64_t sequence = Begin(1);
  UnwrittenBlocks::Flush flush, last;
  blocks_.BeginFlush(&flush, /*last=*/false);
  EXPECT_FALSE(blocks_.Postpone(Block(1), sequence, seconds(1), Wait::kBudget));
  EXPECT_TRUE(blocks_.Postpone(Block(1), sequence, seconds(1), Wait::kRoom));
  blocks_.BeginFlush(&last, /*last=*/true);
  EXPECT_TRUE(blocks_.Postpone(Block(1), sequence, seconds(1), Wait::kBudget));
  EXPECT_FALSE(blocks_.Postpone(Block(1), sequence, seconds(1), Wait::kMemory));
  EXPECT_FALSE(blocks_.Postpone(Block(1), sequence, seconds(1), Wait::kFault));
}

TEST_F(UnwrittenBlocksTest, WhileCopiesAreStalledAllBlocksMayBeEvicted) {
  Add(1);
  Start(1);
  Add(2);
  EXPECT_FALSE(blocks_.LookForStall(true).began);
  clock_.Advance(UnwrittenBlocks::kStalledAfter + seconds(1));
  EXPECT_FALSE(blocks_.LookForStall(false).began);  // Nothing is under way.
  auto stall = blocks_.LookForStall(true);
  EXPECT_TRUE(stall.began);
  EXPECT_EQ(stall.blocks, 2u);
  EXPECT_EQ(stall.release.size(), 2u);
  Add(3);
  stall = blocks_.LookForStall(true);
  EXPECT_FALSE(stall.began);
  ASSERT_EQ(stall.release.size(), 1u);
  EXPECT_EQ(stall.release[0].key, Key(3));
  blocks_.End(Block(1), Begin(1));
  EXPECT_TRUE(blocks_.LookForStall(true).release.empty());
}

// Random steps: whatever happens, a block that was added is in exactly one place until it ends, and
// in the end a flush gets all of them.
TEST_F(UnwrittenBlocksTest, NoBlockIsLost) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    UnwrittenBlocks blocks(&clock_);
    MoveQueue queue({.capacity = 2, .max_under_way = 2});
    std::map<uint8_t, uint64_t> under_way;  // Sequences.
    std::set<uint8_t> written, added;
    const auto finish = [&](uint8_t n, uint64_t sequence, unsigned how) {
      under_way.erase(n);
      queue.Done({ns_, Key(n)});
      switch (how) {
        case 0:
          blocks.Postpone(Block(n), sequence, seconds(1), Wait::kBudget);
          break;
        case 1:
          blocks.Decline(Declined(n), sequence);
          break;
        case 2:
          blocks.Park(Block(n), sequence);
          break;
        default:
          blocks.End(Block(n), sequence);
          written.insert(n);
      }
    };
    const auto start = [&] {
      while (const auto move = queue.Pop()) {
        under_way[move->key.bytes[0]] = blocks.Begin({ns_, move->key}).sequence;
      }
    };
    for (int step = 0; step < 100; ++step) {
      const auto n = static_cast<uint8_t>(random() % 8);
      switch (random() % 5) {
        case 0:
          if (blocks.Add(Block(n), kBytes, {kCommon, kBytes}, kRoomBytes)) {
            added.insert(n);
            written.erase(n);
          }
          break;
        case 1:
          clock_.Advance(seconds(1));
          blocks.ProbeParked();
          break;
        case 2:
          for (const auto& [number, block] : blocks.DeclinedToReview()) {
            blocks.EndReview(number, *ns_, random() % 2 == 0 ? Review::kPutInLine : Review::kStays,
                             {});
          }
          break;
        case 3:
          blocks.Fill(&queue, false);
          start();
          break;
        case 4:
          if (!under_way.empty()) {
            const auto [first, sequence] = *under_way.begin();
            finish(first, sequence, random() % 4);
          }
          break;
      }
    }
    UnwrittenBlocks::Flush flush;
    blocks.BeginFlush(&flush, /*last=*/true);
    do {
      while (!under_way.empty()) {
        const auto [first, sequence] = *under_way.begin();
        finish(first, sequence, 3);
      }
      blocks.Fill(&queue, /*ignore_pauses=*/true);
      start();
    } while (!under_way.empty());
    EXPECT_OK(blocks.EndFlush(&flush, {.deadline = clock_.Now()})) << "seed " << seed;
    EXPECT_EQ(blocks.bytes(), 0u) << "seed " << seed;
    EXPECT_EQ(written, added) << "seed " << seed;
  }
}

}  // namespace
}  // namespace cairn::cache
