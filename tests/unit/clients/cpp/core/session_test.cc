// Sessions in steps, on a fake clock, without a thread.
#include "clients/cpp/src/core/session.h"

#include "common/status/matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/clients/cpp/core/fake_paths.h"
#include "tests/unit/clients/cpp/parts.h"

namespace cairn::client {
namespace {

using ::cairn::testing::StatusIs;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::_;
using testing::FakeLink;
using testing::FakeMain;
using ::testing::HasSubstr;
using testing::SmallSpec;

class SessionTest : public ::testing::Test {
 protected:
  Result<SessionPtr> Get() { return session_.Get(clock_.Now() + seconds(1)); }
  std::string Id() {
    const auto session = Get();
    return session.ok() ? (*session)->id : ToString(session.status());
  }

  FakeClock clock_;
  FakeMain node_;
  FakeLink& link_ = node_.link_;
  int opened_ = 0;
  Session session_{{.max_backoff = milliseconds(400)}, &clock_, &node_, [this] { ++opened_; }};
};

TEST_F(SessionTest, TheFirstCallOpensItAndTheNamespacesBefore) {
  ASSERT_OK(session_.Remember(SmallSpec()));
  node_.creates = true;
  EXPECT_FALSE(session_.open());
  EXPECT_EQ(Id(), "session-1");
  EXPECT_TRUE(session_.open());
  EXPECT_EQ(opened_, 1);
  EXPECT_EQ(node_.namespaces_opened, 1);
  EXPECT_TRUE(session_.TakeCreated(Fingerprint(SmallSpec())));
  EXPECT_FALSE(session_.TakeCreated(Fingerprint(SmallSpec())));
  EXPECT_EQ(Id(), "session-1") << "it stays open";
  EXPECT_TRUE(session_.IsCurrent("session-1"));
  EXPECT_FALSE(session_.IsCurrent("session-2"));
}

TEST_F(SessionTest, ANodeThatIsAwayIsAskedAgainAfterABackOffThatGrows) {
  link_.refusal = Errorf(StatusCode::kUnavailable, "nobody there");
  EXPECT_THAT(Get(), StatusIs(StatusCode::kUnavailable, HasSubstr("nobody there")));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(Get().ok());
  EXPECT_EQ(link_.opens, 1) << "no time has passed";

  // 50 ms, 100 ms, 200 ms, and then at most 400 ms, each shortened by up to half.
  for (const int longest : {50, 100, 200, 400, 400, 400}) {
    const int before = link_.opens;
    clock_.Advance(milliseconds(longest / 2) - std::chrono::microseconds(1));
    EXPECT_FALSE(Get().ok());
    EXPECT_EQ(link_.opens, before) << longest;
    clock_.Advance(milliseconds(longest / 2) + std::chrono::microseconds(1));
    EXPECT_FALSE(Get().ok());
    EXPECT_EQ(link_.opens, before + 1) << longest;
  }
  link_.refusal = OkStatus();
  clock_.Advance(milliseconds(400));
  EXPECT_EQ(Id(), "session-1");
}

TEST_F(SessionTest, ASessionThatLastedIsReplacedAtOnce) {
  EXPECT_EQ(Id(), "session-1");
  clock_.Advance(seconds(5));
  link_.alive = false;
  EXPECT_EQ(Id(), "session-2");
  EXPECT_EQ(session_.times_opened(), 2u);
  EXPECT_EQ(opened_, 2);
  EXPECT_EQ(link_.closes, 1);
}

TEST_F(SessionTest, ANodeThatEndsEachSessionIsNotAskedWithoutAPause) {
  EXPECT_EQ(Id(), "session-1");
  link_.alive = false;
  EXPECT_THAT(Get(), StatusIs(StatusCode::kUnavailable, HasSubstr("fell asleep")));
  EXPECT_FALSE(session_.open());
  EXPECT_EQ(link_.opens, 1);
  clock_.Advance(milliseconds(50));
  EXPECT_EQ(Id(), "session-2");
}

TEST_F(SessionTest, AnEndThatNobodyNoticedIsFoundWhenACallFailed) {
  EXPECT_EQ(Id(), "session-1");
  EXPECT_FALSE(session_.HasEnded("session-1", clock_.Now() + seconds(1)));
  EXPECT_EQ(link_.thorough_looks, 1);
  clock_.Advance(seconds(5));
  link_.alive = false;
  EXPECT_TRUE(session_.HasEnded("session-1", clock_.Now() + seconds(1)));
  EXPECT_FALSE(session_.IsCurrent("session-1"));
  EXPECT_EQ(Id(), "session-2");
  EXPECT_TRUE(session_.HasEnded("session-1", clock_.Now() + seconds(1)));
}

TEST_F(SessionTest, MissingNamespacesAreOpenedAgainOnceASecond) {
  ASSERT_OK(session_.Remember(SmallSpec()));
  EXPECT_EQ(Id(), "session-1");
  EXPECT_EQ(node_.namespaces_opened, 1);
  for (int i = 0; i < 10; ++i) {
    session_.ReopenNamespaces();
    ASSERT_OK(Get());
  }
  EXPECT_EQ(node_.namespaces_opened, 2);
  clock_.Advance(seconds(1));
  ASSERT_OK(Get());
  EXPECT_EQ(node_.namespaces_opened, 3) << "the last request was not forgotten";
  clock_.Advance(seconds(1));
  ASSERT_OK(Get());
  EXPECT_EQ(node_.namespaces_opened, 3);
}

TEST_F(SessionTest, ANamespaceIsOpenedAgainWithTheLifeOfItsBlocks) {
  ASSERT_OK(session_.Remember(SmallSpec(), {.block_life = seconds(5)}));
  EXPECT_EQ(Id(), "session-1");
  EXPECT_EQ(node_.last_block_life, seconds(5));
  ASSERT_OK(session_.Remember(SmallSpec()));  // Says nothing.
  node_.last_block_life = seconds(0);
  session_.ReopenNamespaces();
  ASSERT_OK(Get());
  EXPECT_EQ(node_.last_block_life, seconds(5));
}

TEST_F(SessionTest, ARefusedNamespaceIsNoReasonToHaveNoSession) {
  ASSERT_OK(session_.Remember(SmallSpec()));
  node_.namespace_refusal = Errorf(StatusCode::kResourceExhausted, "too many");
  EXPECT_EQ(Id(), "session-1");
}

TEST_F(SessionTest, ANodeThatDiesWhileNamespacesAreOpenedIsAway) {
  ASSERT_OK(session_.Remember(SmallSpec()));
  node_.namespace_refusal = Errorf(StatusCode::kUnavailable, "gone");
  EXPECT_THAT(Get(), StatusIs(StatusCode::kUnavailable, HasSubstr("gone")));
  EXPECT_EQ(link_.closes, 1) << "no half session stays at the node";
  EXPECT_EQ(opened_, 0);
}

TEST_F(SessionTest, AStepSaysWhenTheNextIsDue) {
  const TimePoint next = session_.Step();
  EXPECT_TRUE(session_.open());
  EXPECT_GT(next, clock_.Now());
  EXPECT_LE(next, clock_.Now() + milliseconds(50));
  link_.alive = false;
  link_.refusal = Errorf(StatusCode::kUnavailable, "gone");
  clock_.Advance(seconds(5));
  EXPECT_EQ(session_.Step(), clock_.Now()) << "a restart is looked for at once";
  const TimePoint retry = session_.Step();
  EXPECT_GT(retry, clock_.Now());
  EXPECT_EQ(session_.Step(), retry) << "nothing is due before";
  EXPECT_EQ(link_.opens, 2);
  session_.Stop();
  EXPECT_EQ(session_.Step(), TimePoint::max());
  EXPECT_FALSE(session_.WaitForWork(clock_.Now()));
}

}  // namespace
}  // namespace cairn::client
