#include "clients/cpp/src/core/cluster_watcher.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "common/status/matchers.h"
#include "tests/unit/clients/cpp/core/scripted_cluster.h"

namespace cairn::client {
namespace {

using cairn::testing::StatusIs;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::_;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

ClusterMember Member(const std::string& id, const std::string& address) {
  ClusterMember member;
  member.node_id = id;
  member.address = address;
  return member;
}
// As "a" sees it.
ClusterMembers View(std::vector<ClusterMember> others) {
  return {.cluster = "c", .self = Member("a", "a:1"), .members = std::move(others)};
}

TEST(MemberRosterTest, MembersComeAndGo) {
  MemberRoster roster({"seed:1"});
  EXPECT_THAT(roster.ToAsk(), ElementsAre("seed:1"));
  const auto first = roster.Take(View({Member("b", "b:1")}), "seed:1", {});
  EXPECT_THAT(first.added, ElementsAre(Pair("a", "a:1"), Pair("b", "b:1")));
  EXPECT_THAT(roster.ToAsk(), ElementsAre("a:1", "b:1", "seed:1"));
  const auto same = roster.Take(View({Member("b", "b:1")}), "a:1", {});
  EXPECT_TRUE(same.added.empty() && same.removed.empty());
  const auto gone = roster.Take(View({}), "a:1", {{"b", false}});
  EXPECT_THAT(gone.removed, ElementsAre("b"));
}

TEST(MemberRosterTest, AMemberWhoseEventsComeStays) {
  MemberRoster roster({"a:1"});
  roster.Take(View({Member("b", "b:1")}), "a:1", {});
  EXPECT_THAT(roster.Take(View({}), "a:1", {{"b", true}}).removed, IsEmpty());
}

TEST(MemberRosterTest, AMemberThatMovedIsFollowedAtItsNewAddress) {
  MemberRoster roster({"a:1"});
  roster.Take(View({Member("b", "b:1")}), "a:1", {});
  const auto moved = roster.Take(View({Member("b", "b:2")}), "a:1", {{"b", true}});
  EXPECT_THAT(moved.removed, ElementsAre("b"));
  EXPECT_THAT(moved.added, ElementsAre(Pair("b", "b:2")));
}

TEST(MemberRosterTest, AMemberThatLeavesIsNone) {
  MemberRoster roster({"a:1"});
  ClusterMember leaving = Member("b", "b:1");
  leaving.leaving = true;
  EXPECT_THAT(roster.Take(View({leaving}), "a:1", {}).added, ElementsAre(Pair("a", "a:1")));
}

TEST(MemberRosterTest, ANodeThatIsAloneIsFollowedWhereItWasAsked) {
  MemberRoster roster({"x:1"});
  ClusterMembers alone;
  alone.self.node_id = "n";
  EXPECT_THAT(roster.Take(alone, "x:1", {}).added, ElementsAre(Pair("n", "x:1")));
}

TEST(MemberRosterTest, ANodeWithoutClustersIsFollowedUnderItsAddress) {
  MemberRoster roster({"x:1"});
  EXPECT_THAT(roster.TakeAlone("x:1").added, ElementsAre(Pair("x:1", "x:1")));
  EXPECT_THAT(roster.TakeAlone("x:1").added, IsEmpty());
}

class ClusterWatcherTest : public ::testing::Test {
 protected:
  ScriptedNode& Node(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(cluster_.mu) {
    return cluster_.nodes[address];
  }
  void Start(ClusterWatchOptions options = {}) {
    options.refresh = milliseconds(5);
    events_ = WatchCluster(cluster_.Transport(), {"a:1"}, options);
  }
  // The next events of a member, in their order, until there are `count`.
  std::vector<std::string> Take(const std::string& id, size_t count) {
    std::vector<std::string>& told = told_[id];
    while (told.size() < count) {
      const auto event = events_->Next(seconds(20));
      EXPECT_OK(event);
      if (!event.ok() || !*event) return {"nothing came"};
      told_[(*event)->node_id].push_back(Short(**event));
    }
    return std::exchange(told, {});
  }

  ScriptedCluster cluster_;
  std::unique_ptr<ClusterEvents> events_;
  std::map<std::string, std::vector<std::string>> told_;
};

TEST_F(ClusterWatcherTest, FollowsAllMembersThatANodeNames) {
  {
    MutexLock lock(cluster_.mu);
    Node("a:1").view = View({Member("b", "b:1")});
    Node("a:1").streams = {{SnapshotEnd(1, 0), Stored(1, 1)}};
    Node("b:1").streams = {{Stored(4, 9), SnapshotEnd(4, 9)}};
  }
  Start();
  EXPECT_THAT(Take("a", 3), ElementsAre("a begins", "a ends", "a 1"));
  EXPECT_THAT(Take("b", 3), ElementsAre("b begins", "b 9", "b ends"));
  EXPECT_THAT(events_->members(), ElementsAre("a", "b"));
}

TEST_F(ClusterWatcherTest, AMemberThatGoesIsLostAndOneThatComesIsFollowed) {
  {
    MutexLock lock(cluster_.mu);
    Node("a:1").view = View({Member("b", "b:1")});
    Node("a:1").streams = {{SnapshotEnd(1, 0)}};
    Node("b:1").streams = {{SnapshotEnd(1, 0)}};
    Node("c:1").streams = {{SnapshotEnd(1, 0)}};
  }
  Start();
  EXPECT_THAT(Take("b", 2), ElementsAre("b begins", "b ends"));
  {
    MutexLock lock(cluster_.mu);
    Node("b:1").breaks = true;
    Node("a:1").view = View({Member("c", "c:1")});
    cluster_.changed.NotifyAll();
  }
  EXPECT_THAT(Take("b", 1), ElementsAre("b lost"));
  EXPECT_THAT(Take("c", 2), ElementsAre("c begins", "c ends"));
}

TEST_F(ClusterWatcherTest, WhenNobodyAnswersTheListStaysAsItIs) {
  {
    MutexLock lock(cluster_.mu);
    Node("a:1").view = View({Member("b", "b:1")});
    Node("a:1").streams = {{SnapshotEnd(1, 0)}};
    Node("b:1").streams = {{SnapshotEnd(1, 0)}};
  }
  Start();
  EXPECT_THAT(Take("b", 2), ElementsAre("b begins", "b ends"));
  MutexLock lock(cluster_.mu);
  Node("a:1").view = Errorf(StatusCode::kUnavailable, "gone");
  Node("b:1").questions = 0;
  // The other member is asked instead, and then the first one again.
  cluster_.changed.Wait(cluster_.mu, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(cluster_.mu) {
    return Node("b:1").questions >= 2;
  });
  EXPECT_THAT(events_->members(), ElementsAre("a", "b"));
}

TEST_F(ClusterWatcherTest, AReaderThatIsSlowHoldsUpTheStreams) {
  {
    MutexLock lock(cluster_.mu);
    Node("a:1").view = View({});
    std::vector<CacheEvent> many{SnapshotEnd(1, 0)};
    for (uint64_t n = 1; n <= 100; ++n) many.push_back(Stored(1, n));
    Node("a:1").streams = {many};
  }
  Start({.queue = 2});
  const auto told = Take("a", 102);
  EXPECT_EQ(told.front(), "a begins");
  EXPECT_EQ(told.back(), "a 100");
}

TEST_F(ClusterWatcherTest, CancelWakesTheReader) {
  Start();
  events_->Cancel();
  EXPECT_THAT(events_->Next(seconds(20)), StatusIs(StatusCode::kCancelled, _));
}

TEST_F(ClusterWatcherTest, EndsWithAFullQueue) {
  {
    MutexLock lock(cluster_.mu);
    Node("a:1").view = View({});
    Node("a:1").streams = {{SnapshotEnd(1, 0), Stored(1, 1), Stored(1, 2)}};
  }
  Start({.queue = 1});
  {
    MutexLock lock(cluster_.mu);
    cluster_.changed.Wait(cluster_.mu, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(cluster_.mu) {
      return Node("a:1").watches > 0;
    });
  }
  events_.reset();
}

}  // namespace
}  // namespace cairn::client
