// Many fetches past a full host tier share a budget of buffers that is too small for all of them.

#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

class TransferBufferTest : public EngineTest {
 protected:
  static constexpr size_t kBuffers = 16;  // So a window is two blocks.

  // Blocks 1 to kBuffers are on disk; host is full of leased blocks, so that nothing is promoted.
  void StartWithFullHost() {
    Options options;
    options.host_bytes = 128 << 10;
    options.engine.max_transfer_bytes = kBuffers * TestPart(spec_.layout, 1, Whole()).size();
    Start(options);
    StoreChain(1, kBuffers);
    StoreChain(101, 106);
    lease_ = Match(TestKeys(101, 106));
    ASSERT_EQ(lease_.matched_blocks, 6u);
    ASSERT_EQ(lease_.tiers.size(), 1u);
    match_ = Match(TestKeys(1, kBuffers));
    ASSERT_EQ(match_.matched_blocks, kBuffers);
    ASSERT_EQ(match_.tiers.back().tier, TierKind::kDisk);
  }
  std::unique_ptr<FetchStream> Begin() {
    auto stream = engine_->Fetch({.session = session_, .lease = *match_.lease, .trace = ""});
    EXPECT_OK(stream);
    return *std::move(stream);
  }
  // Takes what is there without waiting. False at the end.
  bool TakeWhatIsThere(FetchStream& stream, std::vector<FetchedSlice>* slices) {
    for (;;) {
      auto item = stream.Next(TimePoint());
      if (!item.ok()) {
        EXPECT_EQ(item.status().code(), StatusCode::kDeadlineExceeded);
        return true;
      }
      if (!*item) return false;
      slices->push_back(std::get<FetchedSlice>(**item));
    }
  }

  MatchResult lease_, match_;
};

TEST_F(TransferBufferTest, FetchesDoNotWaitForEachOthersBuffers) {
  StartWithFullHost();
  // One reader has all the buffers ...
  std::vector<FetchedSlice> kept;
  {
    auto reader = Begin();
    ASSERT_FALSE(TakeWhatIsThere(*reader, &kept));
    ASSERT_EQ(kept.size(), kBuffers * kLayers);
  }
  // ... and gives them up one by one, each to another fetch.
  disk_->HoldCallbacks();
  std::vector<std::unique_ptr<FetchStream>> fetches;
  for (uint32_t b = 0; b < kBuffers; ++b) {
    std::erase_if(kept, [b](const FetchedSlice& slice) { return slice.block == b; });
    fetches.push_back(Begin());
    std::vector<FetchedSlice> none;
    ASSERT_TRUE(TakeWhatIsThere(*fetches.back(), &none));
    ASSERT_TRUE(none.empty());
    ASSERT_EQ(disk_->held(), b + 1);
  }
  // Each has a buffer and wants one more for its window: they must go on with what they have.
  disk_->HoldCallbacks(false);
  disk_->RunHeld();
  std::vector<size_t> taken(kBuffers);
  std::vector<bool> ended(kBuffers);
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t f = 0; f < kBuffers; ++f) {
      if (ended[f]) continue;
      std::vector<FetchedSlice> slices;
      ended[f] = !TakeWhatIsThere(*fetches[f], &slices);
      progress |= ended[f] || !slices.empty();
      taken[f] += slices.size();
      for (const FetchedSlice& slice : slices) EXPECT_TRUE(IsSliceOf(1 + slice.block, slice));
    }
  }
  for (size_t f = 0; f < kBuffers; ++f) EXPECT_EQ(taken[f], kBuffers * kLayers) << "fetch " << f;
}

// The node learns that a reader who takes nothing holds up others.
TEST_F(TransferBufferTest, AFetchThatHoldsBuffersKnowsThatOthersWait) {
  StartWithFullHost();
  std::vector<std::unique_ptr<FetchStream>> stopped;
  std::vector<FetchedSlice> kept;
  // Each takes what fits its windows and is not read on, until one gets nothing.
  std::unique_ptr<FetchStream> waits;
  while (waits == nullptr) {
    ASSERT_LE(stopped.size(), kBuffers);
    auto stream = Begin();
    const auto item = stream->Next(TimePoint());
    if (!item.ok()) {
      EXPECT_EQ(item.status().code(), StatusCode::kDeadlineExceeded);
      waits = std::move(stream);
      break;
    }
    EXPECT_FALSE(stream->holds_up_others());
    kept.push_back(std::get<FetchedSlice>(**item));
    stopped.push_back(std::move(stream));
  }
  ASSERT_GT(stopped.size(), 1u);
  std::vector<FetchedSlice> none;
  for (const auto& stream : stopped) EXPECT_TRUE(stream->holds_up_others());
  EXPECT_FALSE(waits->holds_up_others());
  // When one is cut off, the other goes on.
  stopped.pop_back();
  kept.pop_back();
  for (const auto& stream : stopped) EXPECT_FALSE(stream->holds_up_others());
  ASSERT_TRUE(TakeWhatIsThere(*waits, &none));
  EXPECT_FALSE(none.empty());
}

}  // namespace
}  // namespace cairn::cache::testing
