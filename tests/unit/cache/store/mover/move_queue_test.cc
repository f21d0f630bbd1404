#include "services/cache/store/mover/move_queue.h"

#include <gtest/gtest.h>

#include "services/cache/store/mover/pump.h"
#include "services/cache/store/mover/transfer_budget.h"

namespace cairn::cache {
namespace {

class MoveQueueTest : public ::testing::Test {
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
  MoveQueue::Pushed Push(uint8_t n, MovePriority priority) {
    return queue_.Push(ns_, {Key(n), 100}, priority, waiter_, false);
  }
  int Pop() {
    const auto move = queue_.Pop();
    return move ? move->key.bytes[0] : -1;
  }

  NamespacePtr ns_ =
      std::make_shared<NamespaceState>(StoredNamespace::Of(Spec()), 1, EvictionKind::kLru, 1);
  std::shared_ptr<int> waiter_ = std::make_shared<int>();
  MoveQueue queue_{{.capacity = 3, .max_under_way = 2}};
};

TEST_F(MoveQueueTest, DemandGoesBeforePrefetchBeforeWriteBack) {
  Push(1, MovePriority::kWriteBack);
  Push(2, MovePriority::kPrefetch);
  Push(3, MovePriority::kDemand);
  EXPECT_EQ(Pop(), 3);
  EXPECT_EQ(Pop(), 2);
  EXPECT_EQ(Pop(), -1);  // Two are under way.
  queue_.Done({ns_, Key(3)});
  EXPECT_EQ(Pop(), 1);
}

TEST_F(MoveQueueTest, OneEntryPerBlockWithTheHigherPriority) {
  EXPECT_EQ(Push(1, MovePriority::kPrefetch), MoveQueue::Pushed::kQueued);
  EXPECT_EQ(Push(2, MovePriority::kPrefetch), MoveQueue::Pushed::kQueued);
  EXPECT_EQ(Push(2, MovePriority::kDemand), MoveQueue::Pushed::kMerged);
  EXPECT_EQ(queue_.depth(), 2u);
  EXPECT_EQ(Pop(), 2);
  EXPECT_EQ(Push(2, MovePriority::kDemand), MoveQueue::Pushed::kMerged);  // Under way.
  EXPECT_EQ(Pop(), 1);
  EXPECT_EQ(queue_.depth(), 0u);
  queue_.Done({ns_, Key(2)});
  EXPECT_FALSE(queue_.Contains(*ns_, Key(2)));
  EXPECT_EQ(Pop(), -1);
}

TEST_F(MoveQueueTest, IsBounded) {
  for (uint8_t n = 1; n <= 3; ++n)
    EXPECT_EQ(Push(n, MovePriority::kDemand), MoveQueue::Pushed::kQueued);
  EXPECT_EQ(Push(4, MovePriority::kDemand), MoveQueue::Pushed::kFull);
  EXPECT_EQ(Push(1, MovePriority::kDemand), MoveQueue::Pushed::kMerged);
}

TEST_F(MoveQueueTest, MovesNobodyWaitsForAreCancelled) {
  Push(1, MovePriority::kDemand);
  queue_.Push(ns_, {Key(2), 100}, MovePriority::kDemand, {}, /*anyway=*/true);
  waiter_.reset();
  EXPECT_EQ(Pop(), 2);
  EXPECT_FALSE(queue_.Contains(*ns_, Key(1)));
}

TEST_F(MoveQueueTest, AMoveIsCancelledOnlyWhenAllWhoWaitAreGone) {
  auto other = std::make_shared<int>();
  Push(1, MovePriority::kDemand);
  queue_.Push(ns_, {Key(1), 100}, MovePriority::kPrefetch, other, false);
  other.reset();
  EXPECT_EQ(Pop(), 1);
  queue_.Done({ns_, Key(1)});
  other = std::make_shared<int>();
  Push(2, MovePriority::kPrefetch);
  queue_.Push(ns_, {Key(2), 100}, MovePriority::kPrefetch, other, false);
  waiter_.reset();
  EXPECT_EQ(Pop(), 2);
  EXPECT_EQ(queue_.GetStats().cancelled, 0u);
}

TEST_F(MoveQueueTest, AFullQueueTakesADemandInThePlaceOfTheYoungestOfTheLowest) {
  Push(1, MovePriority::kPrefetch);
  Push(2, MovePriority::kPrefetch);
  Push(3, MovePriority::kDemand);
  EXPECT_EQ(Push(4, MovePriority::kPrefetch), MoveQueue::Pushed::kFull);
  EXPECT_EQ(Push(5, MovePriority::kDemand), MoveQueue::Pushed::kQueued);
  EXPECT_FALSE(queue_.Contains(*ns_, Key(2)));
  EXPECT_EQ(queue_.depth(), 3u);
  EXPECT_EQ(queue_.GetStats().cancelled, 1u);
  EXPECT_EQ(Pop(), 3);
  EXPECT_EQ(Pop(), 5);
}

TEST_F(MoveQueueTest, CopiesThatMustBeMadeAreNotDisplaced) {
  for (uint8_t n = 1; n <= 3; ++n)
    queue_.Push(ns_, {Key(n), 100}, MovePriority::kRebalance, {}, /*anyway=*/true);
  EXPECT_EQ(Push(4, MovePriority::kDemand), MoveQueue::Pushed::kFull);
}

TEST_F(MoveQueueTest, AFullQueueForgetsWhatNobodyWaitsFor) {
  for (uint8_t n = 1; n <= 3; ++n) Push(n, MovePriority::kDemand);
  waiter_ = std::make_shared<int>();
  EXPECT_EQ(Push(4, MovePriority::kDemand), MoveQueue::Pushed::kQueued);
  EXPECT_EQ(queue_.depth(), 1u);
}

TEST_F(MoveQueueTest, HintsLeaveAPlaceForDemands) {
  MoveQueue queue({.capacity = 10, .max_under_way = 2, .max_prefetch_under_way = 1});
  for (uint8_t n = 1; n <= 3; ++n)
    queue.Push(ns_, {Key(n), 100}, MovePriority::kPrefetch, waiter_, false);
  const auto hint = queue.Pop();
  ASSERT_TRUE(hint);
  EXPECT_FALSE(queue.Pop());
  queue.Push(ns_, {Key(9), 100}, MovePriority::kDemand, waiter_, false);
  EXPECT_TRUE(queue.Pop());
  queue.Done(*hint);
  EXPECT_TRUE(queue.Pop());
}

TEST_F(MoveQueueTest, KnowsTheBytesAhead) {
  MoveQueue queue({.capacity = 4, .max_under_way = 1});
  queue.Push(ns_, {Key(1), 1}, MovePriority::kDemand, waiter_, false);
  queue.Pop();
  queue.Push(ns_, {Key(2), 10}, MovePriority::kPrefetch, waiter_, false);
  EXPECT_EQ(queue.BytesAhead(MovePriority::kDemand), 1u);
  EXPECT_EQ(queue.BytesAhead(MovePriority::kPrefetch), 11u);
  // Block 2 becomes a demand; nothing else goes before it but what is under way.
  const MoveQueue::Wanted wanted[] = {{Key(2), 10}, {Key(3), 100}, {Key(4), 1000}};
  const auto pushed = queue.PushAll(ns_, wanted, MovePriority::kDemand, waiter_);
  EXPECT_EQ(pushed.merged, 1u);
  EXPECT_EQ(pushed.queued, 2u);
  EXPECT_EQ(pushed.full, 0u);
  EXPECT_EQ(pushed.bytes_ahead, 1u);
  EXPECT_EQ(queue.BytesAhead(MovePriority::kDemand), 1111u);
  const MoveQueue::Wanted more[] = {{Key(5), 1}, {Key(6), 1}, {Key(7), 1}};
  EXPECT_EQ(queue.PushAll(ns_, more, MovePriority::kDemand, waiter_).full, 2u);
}

TEST(PumpTest, RunsUntilThereIsNothingAndOnePostAtATime) {
  ManualExecutor executor;
  int work = 3, steps = 0;
  Pump pump(&executor, [&] {
    ++steps;
    return --work > 0;
  });
  pump.Kick();
  pump.Kick();
  EXPECT_EQ(executor.Pending(), 1u);
  executor.RunAll();
  EXPECT_EQ(steps, 3);
}

TEST(PumpTest, AKickFromInsideAStepIsNotLost) {
  InlineExecutor executor;
  int steps = 0;
  Pump* self = nullptr;
  Pump pump(&executor, [&] {
    if (++steps == 1) self->Kick();
    return false;
  });
  self = &pump;
  pump.Kick();
  EXPECT_EQ(steps, 2);
}

TEST(TransferBudgetTest, SharesComeBackAndALargeBlockPassesAlone) {
  Wakeup progress;
  TransferBudget budget(100, &progress);
  auto small = budget.TryTake(60);
  ASSERT_NE(small, nullptr);
  EXPECT_EQ(budget.TryTake(60), nullptr);
  const uint64_t before = progress.Now();
  small.reset();
  EXPECT_NE(progress.Now(), before);
  auto large = budget.TryTake(1000);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(budget.TryTake(1), nullptr);
  large.reset();
  EXPECT_EQ(budget.used(), 0u);
}

}  // namespace
}  // namespace cairn::cache
