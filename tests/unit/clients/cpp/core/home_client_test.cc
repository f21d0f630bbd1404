// A client of several nodes, over their engines, in one thread and on a fake clock.
#include "clients/cpp/src/core/home_client.h"

#include <algorithm>

#include "common/status/matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/in_process_nodes.h"
#include "tests/unit/clients/cpp/parts.h"

namespace cairn::client {
namespace {

using cairn::testing::InProcessNodes;
using ::cairn::testing::StatusIs;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::_;
using testing::Chain;
using testing::CheckingSink;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::SmallSpec;

class HomeClientTest : public ::testing::Test {
 protected:
  void SetUp() override { Use(nodes_.NewClient({.key = "client"})); }
  void Use(std::unique_ptr<HomeClient> client) {
    client_ = std::move(client);
    ASSERT_OK(client_->OpenNamespace(spec_, {}));
  }
  std::string Home() const { return client_->GetStats().home; }
  size_t HomeNumber() const { return InProcessNodes::Number(Home()); }
  Result<MatchOutcome> Match(Duration deadline = seconds(1)) {
    return client_->Match(fingerprint_, chain_.keys,
                          {.deadline = deadline, .lease_ttl = seconds(600)});
  }
  void Push(CacheClient& client) {
    ASSERT_OK(client.OpenNamespace(spec_, {}));
    const auto pushed = client.Push(fingerprint_, chain_.parts, {});
    ASSERT_OK(pushed);
    for (const Status& status : *pushed) ASSERT_OK(status);
  }
  // Time passes, and the client makes its steps.
  void Advance(Duration time) {
    for (const TimePoint end = clock_.Now() + time; clock_.Now() < end;) {
      clock_.Advance(milliseconds(100));
      for (size_t i = 0; i < nodes_.size(); ++i) {
        if (!dead_.contains(i)) nodes_.engine(i).Tick();
      }
      client_->Step();
    }
  }
  void Kill(size_t node) {
    nodes_.Kill(node);
    dead_.insert(node);
  }
  void Restart(size_t node) {
    nodes_.Start(node);
    dead_.erase(node);
  }
  // Fetches everything, right.
  void ExpectWhole(const Lease& lease) {
    CheckingSink sink(spec_, chain_.keys);
    EXPECT_OK(client_->Fetch(lease, {}, sink, {}));
    EXPECT_EQ(sink.slices, 20u);
    EXPECT_EQ(sink.wrong, 0u);
    EXPECT_THAT(sink.failed, IsEmpty());
  }

  const NamespaceSpec spec_ = SmallSpec();
  const Digest fingerprint_ = Fingerprint(spec_);
  const Chain chain_{spec_, 5};
  FakeClock clock_;
  InProcessNodes nodes_{&clock_, 3};
  std::set<size_t> dead_;
  std::unique_ptr<HomeClient> client_;
};

TEST_F(HomeClientTest, OneNodeIsUsed) {
  Push(*client_);
  const auto match = Match();
  ASSERT_OK(match);
  EXPECT_EQ(match->matched_blocks, 5u);
  ExpectWhole(match->lease);
  Advance(seconds(60));
  EXPECT_EQ(nodes_.clients_made, 1) << "the others are not even connected to";
  EXPECT_EQ(client_->GetStats().home_changes, 0u);
  EXPECT_EQ(client_->GetStats().sessions, 1u);
  EXPECT_EQ(client_->GetStats().home_node_id, std::string("node-") + Home()[0]);
}

TEST_F(HomeClientTest, WhenTheHomeDiesTheSameCallIsAnsweredByTheNext) {
  Push(*client_);
  const size_t first = HomeNumber();
  Kill(first);
  const auto match = Match();
  ASSERT_OK(match) << "a miss, not an error";
  EXPECT_EQ(match->matched_blocks, 0u);
  EXPECT_NE(HomeNumber(), first);
  EXPECT_EQ(client_->GetStats().home_changes, 1u);
  Push(*client_);
  const auto again = Match();
  ASSERT_OK(again);
  EXPECT_EQ(again->matched_blocks, 5u);
  ExpectWhole(again->lease);
}

TEST_F(HomeClientTest, EveryCallThatMayBeRepeatedIs) {
  const std::string preferred = Home();
  const auto before = [&] {
    Advance(seconds(60));  // At its preferred home again.
    EXPECT_EQ(Home(), preferred);
    Kill(HomeNumber());
  };
  const auto after = [&] {
    for (const size_t node : std::set<size_t>(dead_)) Restart(node);
  };
  before();
  EXPECT_OK(client_->OpenNamespace(spec_, {}));
  after();
  before();
  EXPECT_OK(client_->Exists(fingerprint_, chain_.keys, {}));
  after();
  before();
  EXPECT_OK(client_->Prefetch(fingerprint_, chain_.keys, seconds(5), {}));
  after();
  before();
  EXPECT_OK(client_->Stat({}));
  after();
  before();
  CheckingSink sink(spec_, chain_.keys);
  EXPECT_OK(client_->Get(fingerprint_, chain_.keys, {}, sink, {}, {}));
  // Away and back each time. But Stat needs no session, so nobody looked whether it had ended.
  EXPECT_EQ(client_->GetStats().home_changes, 7u);
}

TEST_F(HomeClientTest, APushAtADeadHomeFailsAndTheNextSucceeds) {
  Kill(HomeNumber());
  EXPECT_FALSE(client_->Push(fingerprint_, chain_.parts, {}).ok());
  Push(*client_);
}

TEST_F(HomeClientTest, AFetchUnderALeaseOfADeadHomeFailsAsWithOneNode) {
  Push(*client_);
  auto match = Match();
  ASSERT_OK(match);
  Kill(HomeNumber());
  CheckingSink sink(spec_, chain_.keys);
  const Status dead = client_->Fetch(match->lease, {}, sink, {});
  EXPECT_TRUE(dead.code() == StatusCode::kUnavailable || dead.code() == StatusCode::kNotFound)
      << ToString(dead);
  ASSERT_OK(Match());  // At another home.
  EXPECT_FALSE(client_->Fetch(match->lease, {}, sink, {}).ok());
  EXPECT_FALSE(client_->RenewLease(match->lease, seconds(1), {}).ok());
  EXPECT_EQ(sink.slices, 0u);
}

TEST_F(HomeClientTest, ANodeThatHangsLeavesTimeForTheNext) {
  const size_t first = HomeNumber();
  nodes_.node(first).SetFaults({.latency = seconds(60)});
  for (int i = 0; i < 6; ++i) {
    const TimePoint begin = clock_.Now();
    const auto match = Match(seconds(1));
    ASSERT_OK(match) << i;
    EXPECT_LE(clock_.Now() - begin, seconds(1));
  }
  EXPECT_NE(HomeNumber(), first) << "its breaker opened";
  const TimePoint begin = clock_.Now();
  ASSERT_OK(Match());
  EXPECT_EQ(clock_.Now(), begin) << "and then it costs nothing";
}

TEST_F(HomeClientTest, ANodeThatDrainsIsLeftWithoutAFailureAndItsLeasesGoOn) {
  Push(*client_);
  const auto match = Match();
  ASSERT_OK(match);
  const size_t first = HomeNumber();
  nodes_.node(first).SetFaults({.draining = true});
  ASSERT_OK(Match());  // In which the session hears of it.
  ASSERT_OK(Match());
  EXPECT_NE(HomeNumber(), first);
  ExpectWhole(match->lease);
  Advance(seconds(60));
  ExpectWhole(match->lease);
  EXPECT_EQ(client_->GetStats().calls_by_code[static_cast<size_t>(StatusCode::kUnavailable)], 0u);
}

TEST_F(HomeClientTest, BackWhenThePreferredHomeIsSteady) {
  Push(*client_);
  const size_t first = HomeNumber();
  Kill(first);
  ASSERT_OK(Match());
  const size_t second = HomeNumber();
  Push(*client_);
  const auto match = Match();
  ASSERT_OK(match);
  Restart(first);
  Advance(seconds(25));
  EXPECT_EQ(HomeNumber(), second);
  Advance(seconds(15));
  EXPECT_EQ(HomeNumber(), first);
  EXPECT_EQ(client_->GetStats().home_changes, 2u);
  // A fetch that was begun at the other one goes on there.
  ExpectWhole(match->lease);
  EXPECT_OK(client_->RenewLease(match->lease, seconds(600), {}));
  Advance(seconds(60));
  ExpectWhole(match->lease);
  EXPECT_EQ(nodes_.engine(second).GetStats().leases, 1u);
}

TEST_F(HomeClientTest, AClientThatNobodyUsesIsClosedWithItsLastLease) {
  const size_t first = HomeNumber();
  Kill(first);
  ASSERT_OK(Match());
  const size_t second = HomeNumber();
  Push(*client_);
  auto match = Match();
  ASSERT_OK(match);
  Restart(first);
  Advance(seconds(60));
  ASSERT_EQ(HomeNumber(), first);
  EXPECT_EQ(nodes_.engine(second).GetStats().sessions, 1u) << "the lease needs it";
  const uint64_t matches = client_->GetStats().matches;
  match->lease.Release();
  Advance(seconds(11));
  EXPECT_EQ(nodes_.engine(second).GetStats().sessions, 0u);
  EXPECT_EQ(client_->GetStats().matches, matches) << "its totals stay";
}

TEST_F(HomeClientTest, APreferredNodeThatHangsIsNotSteady) {
  const size_t first = HomeNumber();
  nodes_.node(first).SetFaults({.latency = seconds(60)});
  for (int i = 0; i < 6; ++i) ASSERT_OK(Match());
  const size_t second = HomeNumber();
  ASSERT_NE(first, second);
  Advance(seconds(120));
  EXPECT_EQ(HomeNumber(), second);
  nodes_.node(first).SetFaults({});
  Advance(seconds(120));
  EXPECT_EQ(HomeNumber(), first);
}

TEST_F(HomeClientTest, NamespacesAreOpenedAtEachHome) {
  NamespaceSpec later = spec_;
  later.model = "later";
  Kill(HomeNumber());
  ASSERT_OK(Match());
  ASSERT_OK(client_->OpenNamespace(later, {}));
  Kill(HomeNumber());
  const auto match = client_->Match(Fingerprint(later), chain_.keys, {.deadline = seconds(1)});
  ASSERT_OK(match) << "the third node has never heard of it";
  EXPECT_EQ(match->matched_blocks, 0u);
}

TEST_F(HomeClientTest, WhenAllAreDeadCallsFailAtOnceAndTheFirstThatIsBackIsFound) {
  for (size_t i = 0; i < 3; ++i) Kill(i);
  for (int i = 0; i < 5; ++i) EXPECT_THAT(Match(), StatusIs(StatusCode::kUnavailable, _));
  const TimePoint begin = clock_.Now();
  EXPECT_THAT(Match(), StatusIs(StatusCode::kUnavailable, _));
  EXPECT_EQ(clock_.Now(), begin);
  for (size_t back = 0; back < 3; ++back) {
    Restart(back);
    Advance(seconds(60));
    ASSERT_OK(Match());
    EXPECT_EQ(HomeNumber(), back);
    Kill(back);
    Advance(seconds(1));
  }
}

TEST_F(HomeClientTest, ANodeOnTheSameHostIsFound) {
  for (size_t i = 0; i < 3; ++i) {
    nodes_.node(i).SetPlace({.node_id = "n", .host = "host " + std::to_string(i), .zone = "z"});
  }
  for (size_t i = 0; i < 3; ++i) {
    Use(nodes_.NewClient({.key = "client", .host = "host " + std::to_string(i)}));
    Advance(seconds(5));
    EXPECT_EQ(HomeNumber(), i);
    Advance(seconds(15));
    uint64_t sessions = 0;
    for (size_t node = 0; node < 3; ++node) sessions += nodes_.engine(node).GetStats().sessions;
    EXPECT_EQ(sessions, 1u) << "those that were only looked at are closed";
  }
}

TEST_F(HomeClientTest, AWatchEndsWhenTheHomeChanges) {
  const size_t first = HomeNumber();
  Kill(first);
  ASSERT_OK(Match());
  auto watch = client_->WatchEvents({});
  ASSERT_OK(watch);
  Push(*client_);
  const auto event = (*watch)->Next(seconds(1));
  ASSERT_OK(event);
  EXPECT_TRUE(event->has_value());
  Restart(first);
  Advance(seconds(40));
  ASSERT_EQ(HomeNumber(), first);
  EXPECT_THAT((*watch)->Next(seconds(1)), StatusIs(StatusCode::kUnavailable, _));
}

TEST_F(HomeClientTest, AStagedPushIsCommittedWhereItBegan) {
  const size_t first = HomeNumber();
  Kill(first);
  ASSERT_OK(Match());
  const size_t second = HomeNumber();
  const PartToPush& part = chain_.parts[0];
  const PartToWrite room = {.key = part.key, .rect = part.rect, .bytes = part.bytes.size()};
  auto push = client_->BeginPush(fingerprint_, std::span(&room, 1), {});
  ASSERT_OK(push);
  ASSERT_OK((*push)->slots()[0].status);
  std::copy(part.bytes.begin(), part.bytes.end(), (*push)->slots()[0].room.begin());
  Restart(first);
  Advance(seconds(60));
  ASSERT_EQ(HomeNumber(), first);
  const auto committed = (*push)->Commit();
  ASSERT_OK(committed);
  EXPECT_OK(committed->at(0));
  EXPECT_EQ(nodes_.engine(second).GetStats().blocks, 1u);
}

TEST_F(HomeClientTest, ALeaseOfAnotherClientIsRefused) {
  const auto other = nodes_.NewClient({.key = "client"});
  Push(*other);
  const auto match = other->Match(fingerprint_, chain_.keys, {.deadline = seconds(1)});
  ASSERT_OK(match);
  CheckingSink sink(spec_, chain_.keys);
  EXPECT_THAT(client_->Fetch(match->lease, {}, sink, {}), StatusIs(StatusCode::kNotFound, _));
  EXPECT_THAT(client_->Fetch({}, {}, sink, {}), StatusIs(StatusCode::kInvalidArgument, _));
}

// Names are looked up again and again.
class HomeClientNamesTest : public HomeClientTest {
 protected:
  void SetUp() override {
    Found({"a:1"});
    client_ =
        nodes_.NewClient({.choice = {.key = "client"}, .look_up_interval = seconds(30)}, [this] {
          ++look_ups_;
          return found_;
        });
  }
  void Found(const std::vector<std::string>& addresses) {
    found_ = {};
    for (const std::string& address : addresses) found_.nodes.push_back({.address = address});
  }
  HomeClient::Found found_;
  int look_ups_ = 0;
};

TEST_F(HomeClientNamesTest, BeforeTheFirstAnswerThereIsNoNode) {
  EXPECT_THAT(Match(Duration::zero()),
              StatusIs(StatusCode::kUnavailable, HasSubstr("no address of a node")));
  found_ = {.status = Errorf(StatusCode::kUnavailable, "name server away")};
  client_->Step();
  EXPECT_THAT(Match(), StatusIs(StatusCode::kUnavailable, HasSubstr("name server away")));
  Found({"a:1"});
  Advance(seconds(2));
  EXPECT_OK(client_->OpenNamespace(spec_, {}));
}

TEST_F(HomeClientNamesTest, LooksUpAtItsIntervalAndSoonAfterALoss) {
  client_->Step();
  EXPECT_EQ(look_ups_, 1);
  ASSERT_OK(client_->OpenNamespace(spec_, {}));
  Advance(seconds(95));
  EXPECT_EQ(look_ups_, 4);
  Kill(0);
  Found({"b:1"});
  (void)Match();
  Advance(milliseconds(200));
  EXPECT_EQ(look_ups_, 5);
  EXPECT_OK(Match());
  EXPECT_EQ(Home(), "b:1");
}

TEST_F(HomeClientNamesTest, ALookUpThatFailsOrNamesNobodyChangesNothing) {
  client_->Step();
  ASSERT_OK(client_->OpenNamespace(spec_, {}));
  Found({});
  Advance(seconds(31));
  ASSERT_OK(Match());
  found_ = {.status = Errorf(StatusCode::kUnavailable, "name server away")};
  Advance(seconds(31));
  ASSERT_OK(Match());
  Kill(0);
  (void)Match();
  Advance(seconds(3));
  Restart(0);
  Advance(seconds(3));
  EXPECT_OK(Match()) << "its address is still known";
}

TEST_F(HomeClientNamesTest, AHomeThatIsNamedNoMoreStaysWhileItWorks) {
  client_->Step();
  ASSERT_OK(client_->OpenNamespace(spec_, {}));
  Found({"b:1"});
  Advance(seconds(29));
  ASSERT_OK(Match());
  EXPECT_EQ(Home(), "a:1");
  Kill(0);
  Advance(seconds(2));
  ASSERT_OK(Match());
  EXPECT_EQ(Home(), "b:1");
}

}  // namespace
}  // namespace cairn::client
