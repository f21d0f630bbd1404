#include "services/cache/store/state/event_hub.h"

#include <gmock/gmock.h>

#include "common/status/matchers.h"

namespace cairn::cache {
namespace {

using cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kBound = 4096 * sizeof(CacheEvent);

class EventHubTest : public ::testing::Test {
 protected:
  static MemoryAccount::Bounds Bounds() {
    MemoryAccount::Bounds bounds = MemoryAccount::Unbounded();
    bounds[static_cast<size_t>(MemoryItem::kWatches)] = kBound;
    return bounds;
  }
  void Publish(size_t count) {
    for (size_t i = 0; i < count; ++i) hub_.Publish({}, "tenant");
  }
  // The events of the queue, until it is empty.
  static size_t Drain(EventQueue& queue) {
    size_t count = 0;
    for (;;) {
      const auto events = queue.Next(100, TimePoint());
      EXPECT_OK(events);
      if (!events.ok() || events->empty()) return count;
      count += events->size();
    }
  }

  FakeClock clock_;
  MemoryAccount memory_{Bounds()};
  EventHub hub_{/*queue_capacity=*/1 << 20, /*node_epoch=*/1, clock_, &memory_};
};

TEST_F(EventHubTest, WaitingEventsAreChargedAndGivenBack) {
  auto queue = hub_.Subscribe({});
  EXPECT_EQ(memory_.used(MemoryItem::kWatches), 0u);
  Publish(1000);
  EXPECT_GE(memory_.used(MemoryItem::kWatches), 1000 * sizeof(CacheEvent));
  EXPECT_EQ(Drain(*queue), 1000u);
  EXPECT_LE(memory_.used(MemoryItem::kWatches), 256 * sizeof(CacheEvent));
  queue.reset();
  EXPECT_EQ(memory_.used(MemoryItem::kWatches), 0u);
}

// The watcher that would exceed the bound starts again; the others keep what they have.
TEST_F(EventHubTest, AllWatchersTogetherStayWithinTheBound) {
  auto slow = hub_.Subscribe({});
  Publish(3000);
  auto late = hub_.Subscribe({});
  for (int i = 0; i < 3000; ++i) {
    Publish(1);
    ASSERT_LE(memory_.used(MemoryItem::kWatches), kBound);
  }
  EXPECT_THAT(slow->Next(1, TimePoint()),
              StatusIs(StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("start again with a snapshot"),
                             HasSubstr("memory of watches"), HasSubstr("watch.memory"))));
  EXPECT_EQ(Drain(*late), 3000u);
  EXPECT_GT(memory_.refusals(MemoryItem::kWatches), 0u);
  EXPECT_GT(hub_.dropped(), 3000u);
}

TEST_F(EventHubTest, AWatcherOfATenantGetsItsEventsAlone) {
  Fingerprint one, two;
  one.bytes.fill(1);
  two.bytes.fill(2);
  auto all = hub_.Subscribe({});
  auto mine = hub_.Subscribe({.tenant = "mine"});
  auto one_of_mine = hub_.Subscribe({.fingerprint = one, .tenant = "mine"});
  auto none = hub_.Subscribe({.fingerprint = one, .tenant = "min"});
  for (const Fingerprint& fingerprint : {one, two}) {
    CacheEvent event;
    event.fingerprint = fingerprint;
    hub_.Publish(event, "mine");
    hub_.Publish(event, "theirs");
    hub_.Publish(event, "");
  }
  EXPECT_EQ(Drain(*all), 6u);
  EXPECT_EQ(Drain(*mine), 2u);
  EXPECT_EQ(Drain(*one_of_mine), 1u);
  EXPECT_EQ(Drain(*none), 0u);
}

}  // namespace
}  // namespace cairn::cache
