#include "clients/cpp/src/core/member_follower.h"

#include <gmock/gmock.h>

#include "tests/unit/clients/cpp/core/scripted_cluster.h"

namespace cairn::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class MemberFollowerTest : public ::testing::Test {
 protected:
  // The events of the next stream.
  void Script(std::vector<CacheEvent> events) {
    MutexLock lock(cluster_.mu);
    cluster_.nodes["n:1"].streams.push_back(std::move(events));
  }
  void Break(bool breaks) {
    MutexLock lock(cluster_.mu);
    cluster_.nodes["n:1"].breaks = breaks;
  }
  int Watches() {
    MutexLock lock(cluster_.mu);
    return cluster_.nodes["n:1"].watches;
  }
  void Make(MemberFollower::Options options) {
    follower_.emplace("a", "n:1", options, transport_.get(), &clock_);
  }
  // The events that it tells in `steps` steps.
  std::vector<std::string> Run(int steps) {
    if (!follower_) Make({});
    std::vector<MemberEvent> events;
    for (int i = 0; i < steps; ++i) follower_->Step(Duration(0), &events);
    std::vector<std::string> told;
    for (const MemberEvent& event : events) told.push_back(Short(event));
    return told;
  }

  ScriptedCluster cluster_;
  std::unique_ptr<ClusterTransport> transport_ = cluster_.Transport();
  FakeClock clock_;
  std::optional<MemberFollower> follower_;
};

TEST_F(MemberFollowerTest, ASnapshotThenWhatHappens) {
  Script({Stored(1, 7), Stored(1, 7), SnapshotEnd(1, 7), Stored(1, 8), Stored(1, 9)});
  EXPECT_THAT(Run(9), ElementsAre("a begins", "a 7", "a 7", "a ends", "a 8", "a 9"));
  EXPECT_TRUE(follower_->works());
  EXPECT_EQ(Watches(), 1);
}

TEST_F(MemberFollowerTest, AnEmptyNodeHasASnapshot) {
  Script({SnapshotEnd(1, 0), Stored(1, 1)});
  EXPECT_THAT(Run(3), ElementsAre("a begins", "a ends", "a 1"));
}

TEST_F(MemberFollowerTest, AGapMeansASnapshotAgain) {
  Script({SnapshotEnd(1, 7), Stored(1, 8), Stored(1, 10)});
  Script({Stored(1, 10), SnapshotEnd(1, 10), Stored(1, 11)});
  EXPECT_THAT(Run(8),
              ElementsAre("a begins", "a ends", "a 8", "a begins", "a 10", "a ends", "a 11"));
  EXPECT_EQ(Watches(), 2);
}

TEST_F(MemberFollowerTest, WhereOnlySomeAreToldAGapIsNone) {
  Make({.whole = false});
  Script({SnapshotEnd(1, 7), Stored(1, 9), Stored(1, 12), Stored(1, 12)});
  Script({SnapshotEnd(1, 12)});
  EXPECT_THAT(Run(6), ElementsAre("a begins", "a ends", "a 9", "a 12", "a begins", "a ends"));
}

TEST_F(MemberFollowerTest, ANewEpochMeansASnapshotAgain) {
  Script({SnapshotEnd(1, 7), Stored(2, 8)});
  Script({SnapshotEnd(2, 8)});
  EXPECT_THAT(Run(4), ElementsAre("a begins", "a ends", "a begins", "a ends"));
}

TEST_F(MemberFollowerTest, ASnapshotOfTwoEpochsIsNone) {
  Script({Stored(1, 7), Stored(2, 7)});
  Script({SnapshotEnd(2, 7)});
  EXPECT_THAT(Run(2), ElementsAre("a begins", "a 7"));
  clock_.Advance(seconds(1));
  EXPECT_THAT(Run(1), ElementsAre("a begins", "a ends"));
}

TEST_F(MemberFollowerTest, ABrokenStreamIsOpenedAgainAfterAPause) {
  Script({SnapshotEnd(1, 7)});
  Script({SnapshotEnd(1, 8)});
  EXPECT_THAT(Run(1), ElementsAre("a begins", "a ends"));
  Break(true);
  EXPECT_THAT(Run(5), IsEmpty());
  EXPECT_EQ(Watches(), 1);
  EXPECT_FALSE(follower_->works());
  EXPECT_EQ(follower_->resume_at(), clock_.Now() + milliseconds(100));
  Break(false);
  clock_.Advance(milliseconds(100));
  EXPECT_THAT(Run(1), ElementsAre("a begins", "a ends"));
}

TEST_F(MemberFollowerTest, PausesGrowAndBeginAnewAfterASuccess) {
  Make({.first_pause = milliseconds(100), .longest_pause = milliseconds(300)});
  Break(true);
  std::vector<Duration> pauses;
  for (int i = 0; i < 4; ++i) {
    Run(1);
    pauses.push_back(follower_->resume_at() - clock_.Now());
    clock_.Advance(pauses.back());
  }
  EXPECT_THAT(pauses, ElementsAre(milliseconds(100), milliseconds(200), milliseconds(300),
                                  milliseconds(300)));
  Break(false);
  Script({SnapshotEnd(1, 7)});
  {
    MutexLock lock(cluster_.mu);
    cluster_.nodes["n:1"].streams = {{}, {}, {}};
    cluster_.nodes["n:1"].streams.push_front({SnapshotEnd(1, 7)});
  }
  EXPECT_THAT(Run(1), ElementsAre("a begins", "a ends"));
  Break(true);
  Run(1);
  EXPECT_EQ(follower_->resume_at(), clock_.Now() + milliseconds(100));
}

TEST_F(MemberFollowerTest, AMemberIsLostOnceAndCanComeBack) {
  Script({SnapshotEnd(1, 7)});
  EXPECT_THAT(Run(1), ElementsAre("a begins", "a ends"));
  Break(true);
  EXPECT_THAT(Run(1), IsEmpty());
  clock_.Advance(seconds(5));
  EXPECT_THAT(Run(1), ElementsAre("a lost"));
  clock_.Advance(seconds(60));
  EXPECT_THAT(Run(3), IsEmpty());
  Break(false);
  clock_.Advance(seconds(60));
  Script({SnapshotEnd(2, 1)});
  EXPECT_THAT(Run(1), ElementsAre("a begins", "a ends"));
}

TEST_F(MemberFollowerTest, ANodeThatAcceptsAndSaysNothingIsLost) {
  Script({SnapshotEnd(1, 7)});
  Run(1);
  Break(true);
  Run(1);
  Break(false);  // From now on it hangs.
  clock_.Advance(seconds(1));
  EXPECT_THAT(Run(3), IsEmpty());
  clock_.Advance(seconds(4));
  EXPECT_THAT(Run(1), ElementsAre("a lost"));
}

TEST_F(MemberFollowerTest, WhoNeverCameIsNotLost) {
  Break(true);
  Run(1);
  clock_.Advance(seconds(60));
  EXPECT_THAT(Run(3), IsEmpty());
  std::vector<MemberEvent> events;
  follower_->End(&events);
  EXPECT_THAT(events, IsEmpty());
}

TEST_F(MemberFollowerTest, TheEndIsTold) {
  Script({SnapshotEnd(1, 7)});
  Run(1);
  std::vector<MemberEvent> events;
  follower_->End(&events);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(Short(events[0]), "a lost");
  EXPECT_EQ(events[0].address, "n:1");
  follower_->End(&events);
  EXPECT_EQ(events.size(), 1u);
}

}  // namespace
}  // namespace cairn::client
