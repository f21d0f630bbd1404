#include "services/cache/cluster/members/peer_host.h"

#include "common/status/matchers.h"
#include "tests/simulation/cluster/light_engine.h"

namespace cairn::cache {
namespace {

using cairn::testing::LightEngine;
using cairn::testing::StatusIs;
using ::testing::HasSubstr;

PeerCaller CallerOf(const std::string& id, uint64_t incarnation = 1) {
  return {.cluster = "test", .id = id, .incarnation = incarnation};
}

class PeerHostTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cairn::testing::SimulatedNamespace ns{.spec = {}, .fingerprint = ns_};
    ns.spec.layout.block_tokens = 512;
    engine_.Know(ns);
    engine_.Store(ns, keys_);
    host_.Attach(&engine_);
  }
  void TearDown() override { host_.Detach(); }
  static LiveMember MemberOf(const PeerCaller& caller, std::vector<uint64_t> older = {}) {
    LiveMember member;
    member.hello.caller = caller;
    member.older_incarnations = std::move(older);
    return member;
  }
  Result<PeerMatch> Match(const PeerCaller& caller, PeerLease lease = PeerLease::kTake) {
    return host_.Match(caller, {ns_, engine_.BumpsDigestOf(ns_)}, keys_, lease);
  }

  const Digest ns_ = Sha256::Of("namespace");
  const std::vector<BlockKey> keys_{Sha256::Of("0"), Sha256::Of("1")};
  FakeClock clock_;
  LightEngine engine_{{}, &clock_, nullptr, 1, [](const std::string&) {}};
  MemberList members_{{}, {}};
  Directory directory_{{}};
  PeerHost host_{"test",
                 /*tells_digests=*/true,
                 [] {
                   PeerHello self;
                   self.caller = CallerOf("here");
                   return self;
                 },
                 &members_,
                 &directory_,
                 &clock_};
};

TEST_F(PeerHostTest, AMemberHasASessionAndLeases) {
  host_.SetMembers({MemberOf(CallerOf("a"))});
  for (int i = 0; i < 3; ++i) {
    const auto match = Match(CallerOf("a"));
    ASSERT_OK(match);
    EXPECT_EQ(match->blocks, 2u);
  }
  EXPECT_EQ(host_.sessions(), 1u);
  EXPECT_EQ(engine_.leases(), 3u);
  ASSERT_OK(Match(CallerOf("a"), PeerLease::kNone));
  EXPECT_EQ(engine_.leases(), 3u);
}

TEST_F(PeerHostTest, MadeUpIdsShareOneSessionWithoutLeases) {
  for (int i = 0; i < 1000; ++i) {
    const auto match = Match(CallerOf("made up " + std::to_string(i), i));
    ASSERT_OK(match);
    EXPECT_EQ(match->blocks, 2u);
  }
  EXPECT_EQ(host_.sessions(), 1u);
  EXPECT_EQ(engine_.sessions(), 1u);
  EXPECT_EQ(engine_.leases(), 0u);
  // Neither has who knows the id of a member, and not its process.
  host_.SetMembers({MemberOf(CallerOf("a", 1))});
  ASSERT_OK(Match(CallerOf("a", 2)));
  EXPECT_EQ(engine_.leases(), 0u);
}

TEST_F(PeerHostTest, OnlyMembersAreNamedToOthers) {
  host_.SetMembers({MemberOf(CallerOf("a")), MemberOf(CallerOf("b")), MemberOf(CallerOf("c"))});
  const PeerNamespace ns{ns_, engine_.BumpsDigestOf(ns_)};
  std::vector<std::string> named;
  const auto take = [&](const PeerCaller& caller) {
    named.clear();
    auto read = host_.BeginRead(caller, ns, keys_[0], &named);
    EXPECT_OK(read);
    return *std::move(read);
  };
  const std::string long_name(100, 'x');
  const uint64_t before = host_.bytes();
  {
    const auto member = take(CallerOf("a"));
    const auto stranger = take(CallerOf(long_name));
    ASSERT_TRUE(member != nullptr && stranger != nullptr);
    member->SetTaken();
    stranger->SetTaken();
    EXPECT_EQ(take(CallerOf("b")), nullptr);
    EXPECT_EQ(named, std::vector<std::string>{"a"});
  }
  // Whoever took it and is no member sends nobody elsewhere, and is no entry.
  for (int i = 0; i < 1000; ++i) {
    const auto stranger = take(CallerOf(long_name + std::to_string(i)));
    if (stranger != nullptr) stranger->SetTaken();
  }
  EXPECT_NE(take(CallerOf("b")), nullptr);
  EXPECT_LT(host_.bytes(), before + 4096);
  // A member that left is not named any more.
  host_.SetMembers({MemberOf(CallerOf("b")), MemberOf(CallerOf("c"))});
  const auto first = take(CallerOf("b")), second = take(CallerOf("c"));
  EXPECT_EQ(take(CallerOf("z")), nullptr);
  EXPECT_EQ(named, (std::vector<std::string>{"c", "b"}));
}

TEST_F(PeerHostTest, AnOlderProcessOfAMemberIsRefused) {
  host_.SetMembers({MemberOf(CallerOf("a", 2), {1})});
  ASSERT_OK(Match(CallerOf("a", 2)));
  EXPECT_THAT(Match(CallerOf("a", 1)),
              StatusIs(StatusCode::kPermissionDenied, HasSubstr("newer process has the id 'a'")));
  directory_.SetMembers({"a"});
  ASSERT_OK(host_.Announce(CallerOf("a", 2), {.sequence = 1, .begins = true, .complete = true}));
  EXPECT_THAT(host_.Announce(CallerOf("a", 1), {.sequence = 1, .begins = true, .complete = true}),
              StatusIs(StatusCode::kPermissionDenied, HasSubstr("newer process")));
  EXPECT_EQ(directory_.SequenceOf("a", 2), 1u);
}

TEST_F(PeerHostTest, AnotherProcessWithTheIdOfThisOneTellsItNothing) {
  directory_.SetMembers({"here"});
  const Announcement all{.sequence = 1, .begins = true, .complete = true};
  ASSERT_OK(directory_.Apply("here", 2, all));
  EXPECT_THAT(host_.Announce(CallerOf("here", 1), all),
              StatusIs(StatusCode::kPermissionDenied, HasSubstr("got 'here', the id of this")));
  EXPECT_EQ(directory_.SequenceOf("here", 2), 1u);
}

TEST_F(PeerHostTest, SessionsEndWithTheirMembers) {
  host_.SetMembers({MemberOf(CallerOf("a")), MemberOf(CallerOf("b"))});
  ASSERT_OK(Match(CallerOf("a")));
  ASSERT_OK(Match(CallerOf("b")));
  EXPECT_EQ(host_.sessions(), 2u);
  // One has left, and the other one has started again.
  host_.SetMembers({MemberOf(CallerOf("a", 2))});
  EXPECT_EQ(host_.sessions(), 0u);
  EXPECT_EQ(engine_.leases(), 0u);
  ASSERT_OK(Match(CallerOf("a", 2)));
  host_.SetMembers({MemberOf(CallerOf("a", 2)), MemberOf(CallerOf("c"))});
  EXPECT_EQ(host_.sessions(), 1u);
  clock_.Advance(std::chrono::seconds(60));
  host_.Tick();
  EXPECT_EQ(host_.sessions(), 0u);
}

TEST_F(PeerHostTest, ExchangesOfBumpsAreBoundedForEachMember) {
  host_.SetMembers({MemberOf(CallerOf("a")), MemberOf(CallerOf("b"))});
  const auto exchange = [&](const std::string& id) {
    return host_.ExchangeBumps(CallerOf(id), {}).status();
  };
  for (int i = 0; i < static_cast<int>(CallRate::kAtOnce); ++i) ASSERT_OK(exchange("a"));
  EXPECT_THAT(exchange("a"), StatusIs(StatusCode::kResourceExhausted, HasSubstr("'a'")));
  ASSERT_OK(exchange("b"));
  // Those that are no members share one bound.
  for (int i = 0; i < static_cast<int>(CallRate::kAtOnce); ++i) {
    ASSERT_OK(exchange("x" + std::to_string(i)));
  }
  EXPECT_THAT(exchange("y"), StatusIs(StatusCode::kResourceExhausted, HasSubstr("'y'")));
  ASSERT_OK(exchange("b"));
  // A new process of a member does not begin with a new bound.
  host_.SetMembers({MemberOf(CallerOf("a", 2))});
  EXPECT_THAT(exchange("a"), StatusIs(StatusCode::kResourceExhausted, HasSubstr("'a'")));
  clock_.Advance(std::chrono::seconds(1));
  for (int i = 0; i < static_cast<int>(CallRate::kPerSecond); ++i) ASSERT_OK(exchange("a"));
  EXPECT_FALSE(exchange("a").ok());
}

TEST_F(PeerHostTest, AnotherClusterIsRefused) {
  EXPECT_THAT(Match({.cluster = "production", .id = "a"}),
              StatusIs(StatusCode::kPermissionDenied, HasSubstr("'production'")));
}

}  // namespace
}  // namespace cairn::cache
