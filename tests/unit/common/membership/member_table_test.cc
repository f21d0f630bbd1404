#include "common/membership/member_table.h"

#include <gmock/gmock.h>

namespace cairn::membership {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const Member kA{.address = "a:1", .id = "a", .epoch = 1};
const Member kB{.address = "b:1", .id = "b", .epoch = 1};

class MemberTableTest : public ::testing::Test {
 protected:
  FakeClock clock_;
  MemberTable table_{seconds(10)};
};

TEST_F(MemberTableTest, WhoSaysThatItLeavesLeavesAtOnce) {
  table_.Replace({{"ka", kA}, {"kb", kB}}, clock_.Now());
  table_.Leave("ka");
  EXPECT_THAT(table_.view(), ElementsAre(kB));
  // Its record is deleted after that.
  table_.Miss("ka", clock_.Now());
  EXPECT_EQ(table_.Expire(clock_.Now()), TimePoint::max());
}

// When etcd's leader hangs, leases of processes that work may end, all at the same moment.
TEST_F(MemberTableTest, DeletedRecordsHaveTimeToComeBack) {
  table_.Replace({{"ka", kA}, {"kb", kB}}, clock_.Now());
  table_.Miss("ka", clock_.Now());
  table_.Miss("kb", clock_.Now());
  EXPECT_EQ(table_.Expire(clock_.Now()), clock_.Now() + seconds(10));
  EXPECT_THAT(table_.view(), ElementsAre(kA, kB));
  clock_.Advance(seconds(9));
  table_.Put("kb", kB);
  table_.Miss("ka", clock_.Now());
  clock_.Advance(seconds(1));
  EXPECT_EQ(table_.Expire(clock_.Now()), TimePoint::max());
  EXPECT_THAT(table_.view(), ElementsAre(kB));
}

TEST_F(MemberTableTest, NoGraceEndsBecauseTheStoreWasAway) {
  table_.Replace({{"ka", kA}, {"kb", kB}}, clock_.Now());
  table_.Replace({}, clock_.Now());
  clock_.Advance(seconds(60));
  table_.BeginAgain(clock_.Now());
  EXPECT_EQ(table_.Expire(clock_.Now()), clock_.Now() + seconds(10));
  EXPECT_THAT(table_.view(), ElementsAre(kA, kB));
  // Whoever is there has none.
  table_.Put("ka", kA);
  table_.BeginAgain(clock_.Now());
  clock_.Advance(seconds(10));
  EXPECT_EQ(table_.Expire(clock_.Now()), TimePoint::max());
  EXPECT_THAT(table_.view(), ElementsAre(kA));
}

TEST_F(MemberTableTest, ARecordThatAReadingLacksHasTimeToComeBack) {
  table_.Replace({{"ka", kA}, {"kb", kB}}, clock_.Now());
  table_.Replace({{"kb", kB}}, clock_.Now());
  clock_.Advance(seconds(9));
  table_.Replace({{"kb", kB}}, clock_.Now());
  EXPECT_EQ(table_.Expire(clock_.Now()), clock_.Now() + seconds(1));
  EXPECT_THAT(table_.view(), ElementsAre(kA, kB));
  clock_.Advance(seconds(1));
  EXPECT_EQ(table_.Expire(clock_.Now()), TimePoint::max());
  EXPECT_THAT(table_.view(), ElementsAre(kB));
}

TEST_F(MemberTableTest, ARecordThatComesBackStays) {
  table_.Replace({{"ka", kA}}, clock_.Now());
  table_.Replace({}, clock_.Now());
  clock_.Advance(seconds(5));
  table_.Put("ka", kA);
  clock_.Advance(seconds(60));
  EXPECT_EQ(table_.Expire(clock_.Now()), TimePoint::max());
  EXPECT_THAT(table_.view(), ElementsAre(kA));
}

TEST_F(MemberTableTest, AnOldReadingOnlyAdds) {
  Member newer = kA;
  newer.epoch = 2;
  table_.Replace({{"ka", newer}}, clock_.Now());
  table_.Add({{"ka", kA}, {"kb", kB}});
  EXPECT_THAT(table_.view(), ElementsAre(newer, kB));
  table_.Add({});
  EXPECT_THAT(table_.view(), ElementsAre(newer, kB));
}

TEST_F(MemberTableTest, TheNextProcessOfAnIdTakesItsPlace) {
  Member restarted = kA;
  restarted.epoch = 2;
  restarted.address = "a:2";
  table_.Replace({{"ka/1", kA}, {"ka/2", restarted}}, clock_.Now());
  EXPECT_THAT(table_.view(), ElementsAre(restarted));
  table_.Leave("ka/2");
  table_.Leave("ka/1");
  EXPECT_THAT(table_.view(), IsEmpty());
}

}  // namespace
}  // namespace cairn::membership
