// The effects of a flush on others (none), the errors that fail it, and how it ends when the disk
// does not answer. And blocks of many parts, which are many requests to the disk.

#include <atomic>
#include <thread>

#include "tests/support/captured_log.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

using ::cairn::testing::CapturedLog;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

class FlushTest : public EngineTest {
 protected:
  void Step() {
    clock_.Advance(milliseconds(100));
    engine_->Tick();
  }
  // Flushes in a thread of its own while time goes on here; `each` runs after each step. The
  // result, and how long it took on the node's clock.
  std::pair<Status, Duration> FlushWhileTimeGoesOn(
      FlushRequest request, const std::function<void()>& each = [] {}) {
    const TimePoint begin = clock_.Now();
    std::atomic<bool> done{false}, waits{false};
    Status status;
    TimePoint end;
    const auto cancelled = std::move(request.cancelled);
    request.cancelled = [&] {
      waits = true;
      return cancelled && cancelled();
    };
    std::thread flush([&] {
      status = engine_->Flush(request);
      end = clock_.Now();
      done = true;
    });
    // Copies that the flush itself makes are not to look stalled because its thread does not run.
    while (!waits && !done) std::this_thread::yield();
    while (!done) {
      Step();
      each();
      std::this_thread::yield();
    }
    flush.join();
    return {status, end - begin};
  }
};

TEST_F(FlushTest, KeepsTheWriteBudget) {
  Options options;
  options.engine.disk_write_budget = 10 * kBlockRoom;
  options.engine.disk_flush_after = seconds(1);
  Start(options);
  StoreAlone(1, 60);
  const TimePoint begin = clock_.Now();
  const auto [status, took] =
      FlushWhileTimeGoesOn({.deadline = clock_.Now() + std::chrono::hours(10000)}, [&] {
        const double passed = Seconds(clock_.Now() - begin);
        EXPECT_LE(static_cast<double>(BlocksIn(TierKind::kDisk)), 12 + 11 * passed);
      });
  EXPECT_OK(status);
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 60u) << "it waited for the budget, and gave up no block";
  EXPECT_GE(took, seconds(4));
}

TEST_F(FlushTest, BlocksThatComeLaterGoByTheRules) {
  Options options;
  options.disk_bytes = 20 * kBlockRoom;
  options.engine.disk_high_water = 0.5;
  Start(options);
  StoreAlone(1, 4);
  disk_->HoldCallbacks();
  StoreAlone(5, 5);
  std::atomic<bool> waits{false};
  std::thread flush([&] {
    EXPECT_OK(engine_->Flush({.deadline = TimePoint::max(), .cancelled = [&] {
                                waits = true;
                                return false;
                              }}));
  });
  while (!waits) std::this_thread::yield();
  disk_->HoldCallbacks(false);
  // While it waits for block 5.
  StoreAlone(6, 19);
  EXPECT_GT(engine_->GetStats().untouched_copies, 4u);
  EXPECT_LE(BlocksIn(TierKind::kDisk), 14u);
  while (disk_->held() > 0) disk_->RunHeld();
  flush.join();
}

TEST_F(FlushTest, ABlockThatNoDiskCouldTakeFailsNobodysFlush) {
  disk_ = std::make_unique<FakeTier>(
      FakeTier::Options{.capacity_bytes = 64 << 20, .max_extent_bytes = 10 << 10});
  StartWithoutDevice();
  ASSERT_OK(Store(1, std::nullopt));  // Too large.
  const format::PartRect left{0, kLayers, 0, 1}, right{0, kLayers, 1, 2};
  ASSERT_OK(Store(2, std::nullopt, left));
  ASSERT_OK(Store(2, std::nullopt, right));
  for (int i = 0; i < 3; ++i) EXPECT_OK(engine_->Flush(clock_.Now() + seconds(5)));
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 1u);
  EXPECT_EQ(engine_->GetStats().failed_copies, 1u) << "tried once";
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
}

TEST_F(FlushTest, BlocksThatTheDiskDoesNotTakeAreOneLineOfTheLog) {
  disk_ = std::make_unique<FakeTier>(
      FakeTier::Options{.capacity_bytes = 64 << 20, .max_extent_bytes = 10 << 10});
  StartWithoutDevice();
  CapturedLog captured;
  for (int i = 1; i <= 5; ++i) EXPECT_OK(Store(i, std::nullopt));  // Each is too large.
  EXPECT_OK(engine_->Flush(clock_.Now() + seconds(5)));
  const std::string log = captured.Take();
  EXPECT_EQ(engine_->GetStats().failed_copies, 5u);
  const size_t first = log.find("blocks_not_written");
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("blocks_not_written", first + 1), std::string::npos) << log;
}

TEST_F(FlushTest, EndsWhenItsCallerIsGone) {
  Start();
  disk_->HoldCallbacks();
  StoreAlone(1, 3);
  std::atomic<bool> gone{false};
  int steps = 0;
  const auto [status, took] = FlushWhileTimeGoesOn(
      {.deadline = TimePoint::max(), .cancelled = [&] { return gone.load(); }}, [&] {
        if (++steps == 5) gone = true;
      });
  EXPECT_THAT(status, StatusIs(StatusCode::kCancelled, HasSubstr("gave up")));
  disk_->HoldCallbacks(false);
  disk_->RunHeld();
}

TEST_F(FlushTest, EndsAtItsDeadlineWhenTheDiskDoesNotAnswer) {
  Start();
  disk_->HoldCallbacks();
  StoreAlone(1, 3);
  const auto [status, took] = FlushWhileTimeGoesOn({.deadline = clock_.Now() + seconds(5)});
  EXPECT_THAT(status, StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("not on disk")));
  disk_->HoldCallbacks(false);
  disk_->RunHeld();
  EXPECT_OK(engine_->Flush(clock_.Now() + seconds(5)));
}

// Host goes on without the disk, and the disk catches up with what is still there.
TEST_F(FlushTest, ADiskThatDoesNotAnswerDoesNotStopStores) {
  StartWithoutDevice();  // 4 MiB of host: some 240 blocks.
  disk_->HoldCallbacks();
  uint64_t refused = 0;
  uint64_t n = 1;
  for (; n <= 200; ++n) refused += !Store(n, std::nullopt).ok();
  for (int i = 0; i < 400; ++i) Step();
  for (; n <= 1000; ++n) {
    ASSERT_OK(Store(n, std::nullopt)) << n;
    if (n % 20 == 0) Step();
  }
  EXPECT_EQ(ServeAndVerify(1000, 1000), 1u);
  EXPECT_EQ(refused, 0u);
  EXPECT_EQ(engine_->GetStats().copy_stalls, 1u);
  disk_->HoldCallbacks(false);
  disk_->RunHeld();
  for (int i = 0; i < 20; ++i) Step();
  EXPECT_OK(engine_->Flush(clock_.Now() + seconds(5)));
  EXPECT_GT(BlocksIn(TierKind::kDisk), 150u);
}

// A writer that is faster than the disk has its share of what waits. The blocks of others, and its
// own, find room meanwhile, and what was turned away is copied later, used or not.
TEST_F(FlushTest, AWriterFasterThanTheDiskKeepsNobodyFromStoring) {
  StartWithoutDevice();  // 4 MiB of host: some 240 blocks.
  disk_->HoldCallbacks();
  uint64_t refused = 0;
  for (uint64_t n = 1; n <= 1000; ++n) refused += !Store(n, std::nullopt).ok();
  EXPECT_EQ(refused, 0u);
  NamespaceSpec spec = spec_;
  spec.tenant = "other";
  ns_ = engine_->OpenNamespace(spec, false)->fingerprint;
  for (uint64_t n = 2001; n <= 2020; ++n) ASSERT_OK(Store(n, std::nullopt)) << n;
  EXPECT_EQ(ServeAndVerify(2020, 2020), 1u);
  const EngineStats stats = engine_->GetStats();
  EXPECT_GT(stats.crowded_copies, 700u);
  EXPECT_GT(stats.tiers[TierKind::kHost]->evicted_blocks, 700u);
  const uint64_t in_host = BlocksIn(TierKind::kHost);
  disk_->HoldCallbacks(false);
  disk_->RunHeld();
  for (int i = 0; i < 20; ++i) Step();
  EXPECT_EQ(BlocksIn(TierKind::kDisk), in_host) << "nobody flushed, and nobody used them";
}

// A layout of 200 layers, each part a layer of a block.
class ManyPartsTest : public FlushTest {
 protected:
  static constexpr uint16_t kParts = 200;
  ManyPartsTest() {
    spec_.layout.form =
        NativeLayout{.groups = {{.count = kParts,
                                 .planes = {{"k", 1, 8, DType::kF16}, {"v", 1, 8, DType::kF16}}}},
                     .kv_heads = 1};
  }
  void StoreInParts(uint64_t n) {
    for (uint16_t layer = 0; layer < kParts; ++layer) {
      ASSERT_OK(
          Store(n, std::nullopt, format::PartRect{layer, static_cast<uint16_t>(layer + 1), 0, 1}));
    }
  }
};

TEST_F(ManyPartsTest, ABlockHandsTheDiskAFewPartsAtATime) {
  StartWithoutDevice();
  disk_->HoldCallbacks();
  StoreInParts(1);
  size_t largest = 0;
  size_t ended = 0;
  while (disk_->held() > 0) {
    largest = std::max(largest, disk_->held());
    ended += disk_->RunOneHeld();
  }
  EXPECT_EQ(largest, 64u);
  EXPECT_EQ(ended, size_t{kParts});
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 1u);
  // And back, to the host.
  disk_->HoldCallbacks(false);
  Flush();
  CrashAndRestart();
  disk_->HoldCallbacks();
  const MatchResult match = Match(TestKeys(1, 1));
  ASSERT_EQ(match.matched_blocks, 1u);
  largest = 0;
  while (disk_->held() > 0) {
    largest = std::max(largest, disk_->held());
    disk_->RunOneHeld();
  }
  EXPECT_EQ(largest, 64u);
  disk_->HoldCallbacks(false);
  EXPECT_EQ(BlocksIn(TierKind::kHost), 1u);
  ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
}

TEST_F(ManyPartsTest, AnErrorStopsTheRest) {
  StartWithoutDevice();
  disk_->HoldCallbacks();
  StoreInParts(1);
  disk_->FailWrites(1, Errorf(StatusCode::kUnavailable, "hiccup"));
  size_t ended = 0;
  while (disk_->held() > 0) ended += disk_->RunOneHeld();
  EXPECT_EQ(ended, 64u);
  disk_->HoldCallbacks(false);
  EXPECT_OK(engine_->Flush(clock_.Now() + seconds(5)));
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 1u);
}

}  // namespace
}  // namespace cairn::cache::testing
