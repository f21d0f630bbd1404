#include "services/cache/cluster/members/announcement_sender.h"

#include "common/status/matchers.h"
#include "tests/unit/cache/cluster/members/held_links.h"

namespace cairn::cache {
namespace {

using std::chrono::seconds;

constexpr WaymarkHash kFirst = 8, kSecond = 16;

class AnnouncementSenderTest : public ::testing::Test {
 protected:
  void SetOwners(std::vector<std::string> ids) {
    own_.SetMembers(ids);
    sender_.SetMembers(ids);
    announcer_.SetOwners(std::make_shared<const OwnerMap>(std::move(ids)));
    while (!announcer_.Step()) {
    }
  }
  // Links let go of callbacks before what these use is destroyed.
  void TearDown() override { links_.announces.clear(); }
  static AnnouncementSender::Options OptionsOf() {
    return {.self = {.cluster = "test", .id = "self", .incarnation = 1}};
  }

  FakeClock clock_;
  Announcer announcer_{{}};
  Directory own_{{}};
  testing::HeldLinks links_;
  AnnouncementSender sender_{OptionsOf(), &announcer_, &own_, &links_, &clock_};
};

TEST_F(AnnouncementSenderTest, OneMessageAtATimeGoesToAMember) {
  SetOwners({"a"});
  announcer_.Stored({kFirst});
  sender_.Step();
  announcer_.Stored({kSecond});
  sender_.Step();
  ASSERT_EQ(links_.announces.size(), 1u);
  auto first = links_.TakeAnnounce();
  EXPECT_TRUE(first.message.begins);
  EXPECT_EQ(sender_.Settled("a"), std::nullopt);
  first.done(OkStatus());
  EXPECT_EQ(sender_.Settled("a"), 1u);
  sender_.Step();
  ASSERT_EQ(links_.announces.size(), 1u);
  EXPECT_EQ(links_.announces[0].message.sequence, 2u);
  EXPECT_EQ(links_.announces[0].message.adds.size(), 1u);
  EXPECT_EQ(sender_.messages(), 2u);
}

TEST_F(AnnouncementSenderTest, AMessageWithoutAnAnswerIsSentAgainAsItWas) {
  SetOwners({"a"});
  announcer_.Stored({kFirst});
  sender_.Step();
  links_.TakeAnnounce().done(Errorf(StatusCode::kDeadlineExceeded, "late"));
  announcer_.Stored({kSecond});
  sender_.Step();
  EXPECT_TRUE(links_.announces.empty());  // Not before the pause has ended.
  clock_.Advance(seconds(1));
  sender_.Step();
  auto again = links_.TakeAnnounce();
  EXPECT_EQ(again.message.sequence, 1u);
  EXPECT_EQ(again.message.adds.size(), 1u);
  EXPECT_EQ(sender_.failures(), 1u);
}

TEST_F(AnnouncementSenderTest, AMemberThatMissesSomethingIsToldEverythingAgain) {
  SetOwners({"a"});
  announcer_.Stored({kFirst});
  sender_.Step();
  links_.TakeAnnounce().done(OkStatus());
  announcer_.Stored({kSecond});
  sender_.Step();
  links_.TakeAnnounce().done(Errorf(StatusCode::kAborted, "a message is missing"));
  clock_.Advance(seconds(1));
  sender_.Step();
  const auto again = links_.TakeAnnounce();
  EXPECT_TRUE(again.message.begins);
  EXPECT_EQ(again.message.adds.size(), 2u);
}

TEST_F(AnnouncementSenderTest, LinksThatEndLeaveTheMessageForLater) {
  SetOwners({"a"});
  announcer_.Stored({kFirst});
  sender_.Step();
  links_.announces.clear();
  clock_.Advance(seconds(1));
  sender_.Step();
  EXPECT_EQ(links_.announces.size(), 1u);
}

TEST_F(AnnouncementSenderTest, WhatThisNodeOwnsIsInItsDirectory) {
  SetOwners({"self"});
  announcer_.Stored({kFirst});
  sender_.Step();
  EXPECT_TRUE(links_.announces.empty());
  const WaymarkHash hash = kFirst;
  EXPECT_EQ(own_.Find({&hash, 1})[0], std::vector<Holder>{{"self"}});
  EXPECT_FALSE(own_.young());
}

TEST_F(AnnouncementSenderTest, AMemberThatSaysItHasLessIsToldEverythingAgain) {
  SetOwners({"a"});
  announcer_.Stored({kFirst});
  sender_.Step();
  links_.TakeAnnounce().done(OkStatus());
  sender_.Check("a", /*announced=*/1, /*asked_at=*/1);
  sender_.Step();
  EXPECT_TRUE(links_.announces.empty());
  sender_.Check("a", /*announced=*/0, /*asked_at=*/1);
  sender_.Step();
  EXPECT_TRUE(links_.TakeAnnounce().message.begins);
}

TEST_F(AnnouncementSenderTest, AnAnswerToAnOlderQuestionDecidesNothing) {
  SetOwners({"a"});
  announcer_.Stored({kFirst});
  sender_.Step();
  links_.TakeAnnounce().done(OkStatus());
  announcer_.Stored({kSecond});
  sender_.Step();
  sender_.Check("a", /*announced=*/1, /*asked_at=*/1);  // The second is under way.
  links_.TakeAnnounce().done(OkStatus());
  sender_.Check("a", /*announced=*/1, /*asked_at=*/1);
  sender_.Step();
  EXPECT_TRUE(links_.announces.empty());
}

// Their ids may change with each start: what was kept of them would grow without end.
TEST_F(AnnouncementSenderTest, AMemberThatLeftIsForgotten) {
  SetOwners({"a", "b"});
  announcer_.Stored({kFirst});
  sender_.Step();
  ASSERT_EQ(links_.announces.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    links_.TakeAnnounce().done(Errorf(StatusCode::kUnavailable, "nobody is there"));
  }
  EXPECT_EQ(sender_.streams(), 2u);
  SetOwners({"b"});
  EXPECT_EQ(sender_.streams(), 1u);
  clock_.Advance(seconds(1));
  sender_.Step();
  ASSERT_EQ(links_.announces.size(), 1u);
  EXPECT_EQ(links_.announces[0].member, "b");
  // One that leaves while a call is under way, and an announcer that still names it.
  sender_.SetMembers({});
  links_.TakeAnnounce().done(Errorf(StatusCode::kUnavailable, "nobody is there"));
  announcer_.Stored({kSecond});
  sender_.Step();
  EXPECT_EQ(sender_.streams(), 0u);
  EXPECT_TRUE(links_.announces.empty());
}

TEST_F(AnnouncementSenderTest, ANewProcessOfAMemberIsToldEverything) {
  SetOwners({"a"});
  announcer_.Stored({kFirst});
  sender_.Step();
  auto to_the_old = links_.TakeAnnounce();
  sender_.Restart("a");
  sender_.Step();
  ASSERT_EQ(links_.announces.size(), 1u);
  EXPECT_TRUE(links_.announces[0].message.begins);
  // The answer of the process that is gone changes nothing: the new one is still asked.
  to_the_old.done(OkStatus());
  EXPECT_EQ(sender_.Settled("a"), std::nullopt);
}

}  // namespace
}  // namespace cairn::cache
