// Matches of a same-node session that wait for a source.

#include "tests/unit/cache/serve/local/local_session_fixture.h"

namespace cairn::cache::testing {
namespace {

using shm::Op;
using shm::PlaceState;
using std::chrono::milliseconds;

class LocalSourceTest : public LocalServerSessionTest {
 protected:
  LocalSourceTest() : LocalServerSessionTest(/*with_source=*/true) {}
  ~LocalSourceTest() override { source_.DropAnswers(); }

  void GiveSource(uint64_t n) {
    const Layout layout = TestSpec().layout;
    const auto bytes = TestPart(layout, n, layout.WholeRect());
    SourceBlock block;
    block.parts.push_back({layout.WholeRect(), static_cast<uint32_t>(bytes.size())});
    source_.Put(a_, TestKey(n), std::move(block), {bytes});
  }
  // Sends a match and serves it.
  shm::Submission Submit(Client& client, const std::vector<BlockKey>& keys) {
    const shm::Submission s = client.call->MatchCall(a_, keys);
    EXPECT_TRUE(client.call->ring().Submit(s));
    Status why;
    EXPECT_TRUE(client.session->Serve(8, &why)) << Message(why);
    return s;
  }
};

TEST_F(LocalSourceTest, AMatchWaitsWhileOthersAreServed) {
  Client client(this, "a");
  ASSERT_EQ(client.call->Put(client.segments, a_, 1, std::nullopt), kOk);
  GiveSource(2);
  GiveSource(3);
  source_.DelayAnswers(milliseconds(3));
  const shm::Submission match = Submit(client, TestKeys(1, 4));
  EXPECT_TRUE(client.session->has_waiting());
  client.session->RetryWaiting();
  EXPECT_TRUE(client.session->has_waiting());

  clock_.Advance(milliseconds(3));
  source_.RunDue();
  client.session->RetryWaiting();
  EXPECT_FALSE(client.session->has_waiting());
  const shm::Completion done = client.call->Wait(match);
  ASSERT_EQ(done.code, kOk);
  EXPECT_EQ(done.matched, 3u);
  EXPECT_EQ(done.located, 3u);
  const auto places = client.call->Output<shm::PlaceEntry>(match, done);
  ASSERT_EQ(places.size(), 3u);
  ExpectBlock(client, places[0], 1);
  for (uint32_t block : {1u, 2u}) {
    EXPECT_EQ(places[block].state, static_cast<uint8_t>(PlaceState::kElsewhere));
    EXPECT_EQ(places[block].block, block);
    EXPECT_EQ(places[block].tier, 0);
    EXPECT_OK(shm::CheckPlace(places[block], 0));
  }
  // A block that is elsewhere comes with a fetch of the same lease, and is not held here.
  EXPECT_LT(client.session->held_bytes(), done.bytes);
  auto stream = node_.engine->Fetch(
      {.session = client.id, .lease = done.lease, .block_begin = 1, .block_end = 3, .trace = {}});
  ASSERT_OK(stream);
  client.call->Release(done.lease);
  EXPECT_EQ(client.session->held_bytes(), 0u);
  EXPECT_EQ(node_.engine->GetStats().leases, 0u);
}

TEST_F(LocalSourceTest, AfterTheDeadlineTheLocalAnswerComes) {
  Client client(this, "a");
  ASSERT_EQ(client.call->Put(client.segments, a_, 1, std::nullopt), kOk);
  source_.HoldAnswers();
  const shm::Submission match = Submit(client, TestKeys(1, 4));
  clock_.Advance(milliseconds(5));
  timers_.RunDue();
  client.session->RetryWaiting();
  const shm::Completion done = client.call->Wait(match);
  ASSERT_EQ(done.code, kOk);
  EXPECT_EQ(done.matched, 1u);
  client.call->Release(done.lease);
}

TEST_F(LocalSourceTest, ASessionThatEndsMeanwhileLeavesNoLease) {
  for (const uint64_t first : {1, 2}) {
    Client client(this, "a");
    if (first == 1) {
      ASSERT_EQ(client.call->Put(client.segments, a_, 1, std::nullopt), kOk);
    }
    GiveSource(2);
    source_.HoldAnswers();
    Submit(client, TestKeys(first, 2));
    client.session.reset();
    source_.ReleaseAnswers();
    EXPECT_EQ(node_.engine->GetStats().leases, 0u);
  }
}

TEST_F(LocalSourceTest, ANamespaceThatIsHiddenMeanwhileIsAnErrorAndLeavesNoLease) {
  Client client(this, "a");
  ASSERT_EQ(client.call->Put(client.segments, a_, 1, std::nullopt), kOk);
  GiveSource(2);
  source_.HoldAnswers();
  const shm::Submission match = Submit(client, TestKeys(1, 2));
  ASSERT_OK(node_.engine->BumpEpoch(a_));
  source_.ReleaseAnswers();
  client.session->RetryWaiting();
  EXPECT_EQ(client.call->Wait(match).code, Code(StatusCode::kNotFound));
  EXPECT_EQ(client.session->held_bytes(), 0u);
  EXPECT_EQ(node_.engine->GetStats().leases, 0u);
}

}  // namespace
}  // namespace cairn::cache::testing
