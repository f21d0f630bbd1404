#include "services/cache/cluster/members/member_list.h"

#include "common/status/matchers.h"

namespace cairn::cache {
namespace {

using cairn::testing::StatusIs;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PeerHello HelloOf(const std::string& id, uint64_t epoch = 1, uint64_t incarnation = 1) {
  PeerHello hello;
  hello.caller = {.cluster = "test", .id = id, .incarnation = incarnation};
  hello.epoch = epoch;
  hello.address = "at-" + id;
  return hello;
}

class MemberListTest : public ::testing::Test {
 protected:
  void SetView(const std::vector<std::string>& addresses) {
    membership::View view;
    for (const std::string& address : addresses) view.push_back({.address = address});
    members_.SetView(view);
  }
  std::vector<std::string> Live() const {
    std::vector<std::string> ids;
    for (const LiveMember& member : members_.live(now_)) {
      ids.push_back(member.hello.caller.id + "/" + std::to_string(member.hello.epoch));
    }
    return ids;
  }
  void Fail(const std::string& address) {
    members_.Failed(address, Errorf(StatusCode::kUnavailable, "refused"), now_);
  }

  TimePoint now_ = TimePoint() + std::chrono::hours(1);
  MemberList members_{{}, HelloOf("self", 5, 50)};
};

TEST_F(MemberListTest, AnAddressCountsWhenSomebodyHasAnsweredThere) {
  SetView({"at-a", "at-b"});
  EXPECT_THAT(Live(), IsEmpty());
  EXPECT_THAT(members_.TakeDue(now_), ElementsAre("at-a", "at-b"));
  EXPECT_THAT(members_.TakeDue(now_), IsEmpty());
  EXPECT_OK(members_.Heard("at-a", HelloOf("a"), now_));
  EXPECT_THAT(Live(), ElementsAre("a/1"));
  EXPECT_FALSE(members_.asked_all());
  Fail("at-b");
  EXPECT_TRUE(members_.asked_all());
  ASSERT_EQ(members_.absent(now_).size(), 1u);
  EXPECT_THAT(members_.absent(now_)[0].why, StatusIs(StatusCode::kUnavailable, "refused"));
}

TEST_F(MemberListTest, AReasonIsNewsOnce) {
  SetView({"at-a"});
  members_.TakeDue(now_);
  const Status refused = Errorf(StatusCode::kUnavailable, "refused");
  EXPECT_TRUE(members_.Failed("at-a", refused, now_));
  EXPECT_FALSE(members_.Failed("at-a", refused, now_));
  EXPECT_TRUE(members_.Failed("at-a", Errorf(StatusCode::kUnavailable, "no such name"), now_));
  EXPECT_FALSE(members_.Failed("at-b", refused, now_));
}

TEST_F(MemberListTest, FailuresAreRetriedLaterAndLater) {
  SetView({"at-a"});
  (void)members_.TakeDue(now_);
  for (const Duration pause : {milliseconds(500), milliseconds(1000), milliseconds(2000)}) {
    Fail("at-a");
    now_ += pause - Duration(1);
    EXPECT_THAT(members_.TakeDue(now_), IsEmpty());
    now_ += Duration(1);
    EXPECT_THAT(members_.TakeDue(now_), ElementsAre("at-a"));
  }
}

TEST_F(MemberListTest, AMemberThatIsSilentForLongIsNone) {
  SetView({"at-a"});
  EXPECT_OK(members_.Heard("at-a", HelloOf("a"), now_));
  now_ += seconds(30) - Duration(1);
  EXPECT_THAT(Live(), ElementsAre("a/1"));
  now_ += Duration(1);
  EXPECT_THAT(Live(), IsEmpty());
  EXPECT_OK(members_.Greeted(HelloOf("a"), now_));
  EXPECT_THAT(Live(), ElementsAre("a/1"));
}

TEST_F(MemberListTest, WhoGreetsIsGreetedAllTheSame) {
  SetView({"at-a"});
  (void)members_.TakeDue(now_);
  Fail("at-a");
  EXPECT_OK(members_.Greeted(HelloOf("a"), now_));
  EXPECT_THAT(members_.TakeDue(now_), ElementsAre("at-a"));
  EXPECT_OK(members_.Heard("at-a", HelloOf("a"), now_));
  now_ += seconds(9);
  EXPECT_OK(members_.Greeted(HelloOf("a"), now_));
  now_ += seconds(1);
  EXPECT_THAT(members_.TakeDue(now_), ElementsAre("at-a"));
}

TEST_F(MemberListTest, WhoGreetsFromAnUnknownAddressIsNoMember) {
  SetView({"at-a"});
  EXPECT_OK(members_.Greeted(HelloOf("b"), now_));
  EXPECT_THAT(Live(), IsEmpty());
}

TEST_F(MemberListTest, OfOneIdTheNewestProcessCounts) {
  SetView({"here", "there"});
  EXPECT_OK(members_.Heard("here", HelloOf("a", 3, 9), now_));
  EXPECT_OK(members_.Heard("there", HelloOf("a", 4, 1), now_));
  EXPECT_THAT(Live(), ElementsAre("a/4"));
}

TEST_F(MemberListTest, ANewerProcessWithTheOwnIdTakesThePlace) {
  SetView({"here", "there"});
  EXPECT_OK(members_.Heard("here", HelloOf("self", 5, 50), now_));
  EXPECT_OK(members_.Heard("there", HelloOf("self", 4, 99), now_));
  EXPECT_FALSE(members_.replaced_by());
  EXPECT_OK(members_.Heard("there", HelloOf("self", 6, 1), now_));
  ASSERT_TRUE(members_.replaced_by());
  EXPECT_EQ(members_.replaced_by()->epoch, 6u);
  EXPECT_THAT(Live(), IsEmpty());
}

TEST_F(MemberListTest, AFalseGreetingWithTheOwnIdOnlyAsksItsAddress) {
  SetView({"here", "at-b"});
  EXPECT_OK(members_.Heard("here", HelloOf("self", 5, 50), now_));
  EXPECT_OK(members_.Heard("at-b", HelloOf("b"), now_));
  const uint64_t before = members_.version(now_);
  PeerHello lie = HelloOf("self", 1'000'000, 7);
  for (const char* address : {"at-b", "here", "nowhere"}) {
    lie.address = address;
    EXPECT_OK(members_.Greeted(lie, now_));
    EXPECT_FALSE(members_.replaced_by()) << address;
  }
  EXPECT_THAT(Live(), ElementsAre("b/1"));
  EXPECT_EQ(members_.version(now_), before);
  // The addresses say at once who is there.
  EXPECT_THAT(members_.TakeDue(now_), ElementsAre("at-b", "here"));
  EXPECT_OK(members_.Heard("at-b", HelloOf("b"), now_));
  EXPECT_FALSE(members_.replaced_by());
}

TEST_F(MemberListTest, AFalseGreetingTakesNobodysPlace) {
  SetView({"at-a"});
  EXPECT_OK(members_.Heard("at-a", HelloOf("a", 3, 9), now_));
  PeerHello lie = HelloOf("x", 1'000'000, 7);
  lie.address = "at-a";
  EXPECT_OK(members_.Greeted(lie, now_));
  lie.caller.id = "a";
  EXPECT_OK(members_.Greeted(lie, now_));
  EXPECT_THAT(Live(), ElementsAre("a/3"));
  EXPECT_THAT(members_.TakeDue(now_), ElementsAre("at-a"));
}

TEST_F(MemberListTest, AProcessComesBackWhenTheNewerOneIsGone) {
  SetView({"at-a", "here", "there"});
  const auto claim = [&] {
    EXPECT_OK(members_.Heard("at-a", HelloOf("a"), now_));
    EXPECT_OK(members_.Heard("there", HelloOf("self", 6, 1), now_));
    (void)members_.version(now_);
    EXPECT_TRUE(members_.replaced_by());
  };
  claim();
  // Silence.
  now_ += seconds(20);
  Fail("there");
  (void)members_.version(now_);
  EXPECT_TRUE(members_.replaced_by());
  const uint64_t before = members_.version(now_);
  now_ += seconds(10);
  EXPECT_NE(members_.version(now_), before);
  EXPECT_FALSE(members_.replaced_by());
  // Somebody else is at its address.
  claim();
  EXPECT_OK(members_.Heard("there", HelloOf("c"), now_));
  EXPECT_FALSE(members_.replaced_by());
  EXPECT_THAT(Live(), ElementsAre("a/1", "c/1"));
  // Discovery names it no more.
  claim();
  SetView({"at-a", "here"});
  EXPECT_FALSE(members_.replaced_by());
  // Its own greetings do not keep a claim that its address does not confirm.
  SetView({"at-a", "here", "there"});
  claim();
  now_ += seconds(29);
  PeerHello again = HelloOf("self", 6, 1);
  again.address = "there";
  EXPECT_OK(members_.Greeted(again, now_));
  now_ += seconds(1);
  (void)members_.version(now_);
  EXPECT_FALSE(members_.replaced_by());
}

TEST_F(MemberListTest, OlderProcessesOfAnIdAreNamed) {
  SetView({"here", "there", "third"});
  EXPECT_OK(members_.Heard("here", HelloOf("a", 3, 9), now_));
  EXPECT_OK(members_.Heard("there", HelloOf("a", 5, 1), now_));
  EXPECT_OK(members_.Heard("third", HelloOf("a", 4, 2), now_));
  const auto live = members_.live(now_);
  ASSERT_EQ(live.size(), 1u);
  EXPECT_EQ(live[0].hello.caller.incarnation, 1u);
  EXPECT_THAT(live[0].older_incarnations, ::testing::UnorderedElementsAre(9, 2));
}

TEST_F(MemberListTest, WhoDoesNotFitIsNoMemberAndTheReasonIsKept) {
  SetView({"at-a"});
  PeerHello other = HelloOf("a");
  other.caller.cluster = "production";
  EXPECT_THAT(members_.Heard("at-a", other, now_),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("'production'")));
  EXPECT_THAT(members_.Greeted(other, now_),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("name")));
  PeerHello newer = HelloOf("a");
  newer.oldest_version = newer.newest_version = kNewestPeerVersion + 1;
  EXPECT_THAT(members_.Heard("at-a", newer, now_),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("versions")));
  EXPECT_THAT(Live(), IsEmpty());
  newer.oldest_version = kNewestPeerVersion;
  EXPECT_OK(members_.Heard("at-a", newer, now_));
  EXPECT_THAT(Live(), ElementsAre("a/1"));
}

TEST_F(MemberListTest, TheVersionTellsWhetherLookingIsWorthIt) {
  SetView({"at-a"});
  uint64_t seen = members_.version(now_);
  const auto changed = [&] { return std::exchange(seen, members_.version(now_)) != seen; };
  EXPECT_FALSE(changed());
  EXPECT_OK(members_.Heard("at-a", HelloOf("a"), now_));
  EXPECT_TRUE(changed());
  now_ += seconds(20);
  PeerHello hello = HelloOf("a");
  hello.view_digest = 7;
  EXPECT_OK(members_.Greeted(hello, now_));
  EXPECT_FALSE(changed());
  hello.bumps_digest = 7;
  EXPECT_OK(members_.Greeted(hello, now_));
  EXPECT_TRUE(changed());
  Fail("at-a");
  now_ += seconds(29);
  (void)changed();
  EXPECT_THAT(Live(), ElementsAre("a/1"));
  now_ += seconds(1);
  EXPECT_TRUE(changed());
  EXPECT_THAT(Live(), IsEmpty());
  EXPECT_OK(members_.Heard("at-a", hello, now_));
  EXPECT_TRUE(changed());
  EXPECT_OK(members_.Heard("at-a", HelloOf("self", 6, 1), now_));
  EXPECT_TRUE(changed());
}

TEST_F(MemberListTest, WhoLeavesOrIsNamedNoMoreIsGone) {
  SetView({"at-a", "at-b"});
  EXPECT_OK(members_.Heard("at-a", HelloOf("a"), now_));
  EXPECT_OK(members_.Heard("at-b", HelloOf("b"), now_));
  PeerHello leaving = HelloOf("a");
  leaving.leaving = true;
  EXPECT_OK(members_.Greeted(leaving, now_));
  EXPECT_THAT(Live(), ElementsAre("b/1"));
  EXPECT_THAT(members_.absent(now_)[0].why,
              StatusIs(StatusCode::kUnavailable, HasSubstr("leaving")));
  SetView({"at-a"});
  EXPECT_THAT(Live(), IsEmpty());
  EXPECT_OK(members_.Heard("at-b", HelloOf("b"), now_));
  EXPECT_THAT(Live(), IsEmpty());
}

}  // namespace
}  // namespace cairn::cache
