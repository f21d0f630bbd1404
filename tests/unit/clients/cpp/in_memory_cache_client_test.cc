#include "cairn/client/testing/in_memory_cache_client.h"

#include <thread>

#include "common/status/matchers.h"
#include "tests/unit/clients/cpp/parts.h"

namespace cairn::client::testing {
namespace {

using ::cairn::testing::StatusIs;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class InMemoryCacheClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(cache_.OpenNamespace(spec_));
    auto pushed = cache_.Push(fingerprint_, chain_.parts, {});
    ASSERT_OK(pushed);
    for (const Status& status : *pushed) ASSERT_OK(status);
  }
  Result<MatchOutcome> Match() { return cache_.Match(fingerprint_, chain_.keys, {}); }

  const NamespaceSpec spec_ = SmallSpec();
  const Digest fingerprint_ = Fingerprint(spec_);
  const Chain chain_{spec_, 3};
  InMemoryCacheClient cache_;
  CheckingSink sink_{spec_, chain_.keys};
};

TEST_F(InMemoryCacheClientTest, ServesWhatWasPushed) {
  auto match = Match();
  ASSERT_OK(match);
  EXPECT_EQ(match->matched_blocks, 3u);
  EXPECT_EQ(match->miss_reason, MissReason::kNone);
  ASSERT_OK(cache_.Fetch(match->lease, {}, sink_, {}));
  EXPECT_EQ(sink_.slices, 12u);
  EXPECT_EQ(sink_.wrong, 0u);
  EXPECT_EQ(cache_.leases(), 1u);
  match->lease.Release();
  EXPECT_EQ(cache_.leases(), 0u);
}

TEST_F(InMemoryCacheClientTest, MatchesTheLongestCompletePrefix) {
  auto keys = KeysFor(spec_, 5);
  auto match = cache_.Match(fingerprint_, keys, {});
  ASSERT_OK(match);
  EXPECT_EQ(match->matched_blocks, 3u);
  EXPECT_EQ(match->miss_reason, MissReason::kAbsent);
  // Half of block 3.
  Chain half(spec_, 4, {{0, 4, 0, 3}});
  ASSERT_OK(cache_.Push(fingerprint_, std::span(half.parts).last(1), {}));
  match = cache_.Match(fingerprint_, keys, {.lease = false});
  EXPECT_EQ(match->matched_blocks, 3u);
  EXPECT_EQ(match->miss_reason, MissReason::kIncomplete);
  EXPECT_FALSE(match->lease.held());
  Chain other(spec_, 4, {{0, 4, 3, 6}});
  ASSERT_OK(cache_.Push(fingerprint_, std::span(other.parts).last(1), {}));
  match = cache_.Match(fingerprint_, keys, {});
  EXPECT_EQ(match->matched_blocks, 4u);
  EXPECT_EQ(cache_.complete_blocks(), 4u);
}

TEST_F(InMemoryCacheClientTest, FetchKeepsToItsRange) {
  auto match = Match();
  ASSERT_OK(
      cache_.Fetch(match->lease, {.block_begin = 1, .block_end = 2, .layer_begin = 3}, sink_, {}));
  EXPECT_EQ(sink_.slices, 1u);
}

TEST_F(InMemoryCacheClientTest, RefusesPartsThatANodeWouldRefuse) {
  Chain chain(spec_, 1, {}, 500);
  std::vector<std::byte> damaged(chain.parts[0].bytes.begin(), chain.parts[0].bytes.end());
  damaged.back() ^= std::byte{1};
  PartToPush part = chain.parts[0];
  part.bytes = damaged;
  auto pushed = cache_.Push(fingerprint_, std::span(&part, 1), {});
  ASSERT_OK(pushed);
  EXPECT_THAT(pushed->at(0), StatusIs(StatusCode::kDataLoss, _));
  part = chain.parts[0];
  part.rect.head_end = 5;
  pushed = cache_.Push(fingerprint_, std::span(&part, 1), {});
  EXPECT_THAT(pushed->at(0), StatusIs(StatusCode::kInvalidArgument, HasSubstr("rect")));
  EXPECT_THAT(cache_.Push(Digest{}, chain.parts, {}), StatusIs(StatusCode::kNotFound, _));
}

TEST_F(InMemoryCacheClientTest, NamesTheFieldThatDiffers) {
  NamespaceSpec other = spec_;
  other.revision = "2";
  auto opened = cache_.OpenNamespace(other);
  ASSERT_OK(opened);
  ASSERT_EQ(opened->differs.size(), 1u);
  EXPECT_EQ(opened->differs[0].difference.field, "revision");
  const auto match = cache_.Match(opened->fingerprint, KeysFor(other, 1), {});
  ASSERT_OK(match);
  EXPECT_EQ(match->miss_reason, MissReason::kFingerprint);
}

TEST_F(InMemoryCacheClientTest, ARestartEndsLeasesAndKeepsBlocks) {
  auto match = Match();
  cache_.Restart();
  EXPECT_THAT(cache_.Fetch(match->lease, {}, sink_, {}), StatusIs(StatusCode::kNotFound, _));
  EXPECT_EQ(Match()->matched_blocks, 3u);
}

TEST_F(InMemoryCacheClientTest, ALeaseMayOutliveTheClient) {
  auto cache = std::make_unique<InMemoryCacheClient>();
  ASSERT_OK(cache->OpenNamespace(spec_));
  ASSERT_OK(cache->Push(fingerprint_, chain_.parts, {}));
  auto match = cache->Match(fingerprint_, chain_.keys, {});
  ASSERT_OK(match);
  cache.reset();
  match->lease.Release();
}

TEST_F(InMemoryCacheClientTest, ANodeThatIsAway) {
  cache_.SetFaults({.every_call = Errorf(StatusCode::kUnavailable, "away")});
  EXPECT_THAT(Match(), StatusIs(StatusCode::kUnavailable, _));
  EXPECT_THAT(cache_.Push(fingerprint_, chain_.parts, {}), StatusIs(StatusCode::kUnavailable, _));
  cache_.SetFaults({});
  EXPECT_OK(Match());
}

TEST_F(InMemoryCacheClientTest, ANodeThatHangsCostsTheDeadline) {
  auto match = Match();
  cache_.SetFaults({.hang = true});
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(Match(), StatusIs(StatusCode::kDeadlineExceeded, _));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(50));
  EXPECT_THAT(cache_.Fetch(match->lease, {}, sink_, {.progress = milliseconds(10)}),
              StatusIs(StatusCode::kDeadlineExceeded, _));
}

TEST_F(InMemoryCacheClientTest, AHangEndsByCancelOrWhenTheFaultGoes) {
  auto match = Match();
  cache_.SetFaults({.hang_fetch_after = 5});
  std::stop_source cancel;
  sink_.on_slice = [&](const SliceInfo&) {
    if (sink_.slices == 5) cancel.request_stop();
  };
  EXPECT_THAT(cache_.Fetch(match->lease, {}, sink_,
                           {.progress = seconds(60), .cancel = cancel.get_token()}),
              StatusIs(StatusCode::kCancelled, _));
  EXPECT_EQ(sink_.slices, 5u);

  cache_.SetFaults({.hang = true});
  std::thread healer([&] { cache_.SetFaults({}); });
  EXPECT_OK(cache_.Match(fingerprint_, chain_.keys, {.deadline = seconds(60)}));
  healer.join();
}

TEST_F(InMemoryCacheClientTest, AFetchThatBreaksHasGivenGoodSlices) {
  auto match = Match();
  cache_.SetFaults({.break_fetch_after = 4});
  EXPECT_THAT(cache_.Fetch(match->lease, {}, sink_, {}), StatusIs(StatusCode::kUnavailable, _));
  EXPECT_EQ(sink_.slices, 4u);
  EXPECT_EQ(sink_.wrong, 0u);
}

TEST_F(InMemoryCacheClientTest, CorruptBytesAreNeverShown) {
  auto match = Match();
  cache_.SetFaults({.corrupt_block = 1});
  ASSERT_OK(cache_.Fetch(match->lease, {}, sink_, {}));
  EXPECT_THAT(sink_.failed, ElementsAre(Pair(1u, MissReason::kCorrupt)));
  EXPECT_EQ(sink_.wrong, 0u);
  EXPECT_EQ(cache_.GetStats().corrupt_slices, 3u);
}

TEST_F(InMemoryCacheClientTest, WrongBytesWithAValidHashPassEveryCheck) {
  auto match = Match();
  cache_.SetFaults({.wrong_block = 1});
  ASSERT_OK(cache_.Fetch(match->lease, {}, sink_, {}));
  EXPECT_THAT(sink_.failed, IsEmpty());
  EXPECT_EQ(sink_.wrong, 3u) << "that is what the test of identical answers must notice";
}

TEST_F(InMemoryCacheClientTest, ABlockMayVanishBetweenMatchAndFetch) {
  auto match = Match();
  cache_.SetFaults({.evict_block = 2});
  ASSERT_OK(cache_.Fetch(match->lease, {}, sink_, {}));
  EXPECT_THAT(sink_.failed, ElementsAre(Pair(2u, MissReason::kEvicted)));
  EXPECT_EQ(sink_.slices, 8u);
}

}  // namespace
}  // namespace cairn::client::testing
