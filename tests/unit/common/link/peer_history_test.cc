#include "common/link/peer_history.h"

#include "common/status/matchers.h"

namespace cairn::link {
namespace {

using cairn::testing::StatusIs;
using std::chrono::seconds;
using ::testing::_;

TEST(PeerHistoryTest, PausesDoubleUntilAMoveWorks) {
  FakeClock clock;
  PeerHistory history({.first_pause = seconds(1), .longest_pause = seconds(3)}, &clock);
  EXPECT_OK(history.MayCall("a"));
  for (const int pause : {1, 2, 3, 3}) {
    history.Broke("a");
    EXPECT_EQ(history.quarantined(), 1u);
    clock.Advance(seconds(pause) - Duration(1));
    EXPECT_THAT(history.MayCall("a"), StatusIs(StatusCode::kUnavailable, _));
    EXPECT_OK(history.MayCall("b"));
    clock.Advance(Duration(1));
    EXPECT_OK(history.MayCall("a"));
  }
  history.Worked("a");
  history.Broke("a");
  clock.Advance(seconds(1));
  EXPECT_OK(history.MayCall("a"));
}

TEST(PeerHistoryTest, EpochsOnlyGrow) {
  FakeClock clock;
  PeerHistory before({.epoch_base = 1 << 16}, &clock), after({.epoch_base = 2 << 16}, &clock);
  const uint64_t first = before.NextEpoch();
  EXPECT_GT(before.NextEpoch(), first);
  PeerHistory holder({}, &clock);
  EXPECT_OK(holder.Admit("a", first));
  EXPECT_THAT(holder.Admit("a", first), StatusIs(StatusCode::kFailedPrecondition, _));
  EXPECT_OK(holder.Admit("b", first));
  // The process of `a` has started again.
  EXPECT_OK(holder.Admit("a", after.NextEpoch()));
  EXPECT_THAT(holder.Admit("a", first + 5), StatusIs(StatusCode::kFailedPrecondition, _));
}

TEST(PeerHistoryTest, RemembersABoundedNumberOfPeers) {
  FakeClock clock;
  PeerHistory history({}, &clock);
  history.Broke("first");
  for (size_t i = 0; i < 2 * PeerHistory::kMostPeers; ++i) {
    history.RefusedPuts(std::to_string(i));
  }
  EXPECT_THAT(history.MayCall("first"), StatusIs(StatusCode::kUnavailable, _));
  EXPECT_TRUE(history.MayPut("0")) << "what is free to be called is forgotten first";
  EXPECT_FALSE(history.MayPut(std::to_string(2 * PeerHistory::kMostPeers - 1)));
}

}  // namespace
}  // namespace cairn::link
