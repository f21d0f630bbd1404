#include "services/cache/store/mover/transfer.h"

#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "common/status/matchers.h"
#include "services/cache/store/tier/testing/fake_tier.h"

namespace cairn::cache {
namespace {

constexpr uint32_t kBytes = 4096;
constexpr Route kToDisk{TierKind::kHost, TierKind::kDisk};
constexpr Route kToHost{TierKind::kDisk, TierKind::kHost};

// Stores what it loaded, and counts its ends.
struct CountedTransfer final : Transfer {
  using Transfer::Transfer;
  void Loaded(const std::shared_ptr<Transfer>& self) override {
    ++loads;
    Store(self);
  }
  void Ended() override { ++ends; }
  int loads = 0;
  std::atomic<int> ends{0};
};

class TransferTest : public ::testing::Test {
 protected:
  TransferTest() {
    HostTierOptions options;
    options.capacity_bytes = 4 << 20;
    options.prefault = false;
    options.check_memory = false;
    host_ = std::move(HostTier::Create(options)).value();
    Tiers tiers(host_.get());
    tiers.Add(&disk_);
    context_ = std::make_unique<NodeContext>(EngineOptions{}, tiers, &clock_, &executor_);
  }
  // A block whose parts lie in the source, and have room in the target.
  std::shared_ptr<CountedTransfer> Make(const Route& route, size_t parts) {
    auto transfer = std::make_shared<CountedTransfer>(context_.get(), route, Move{});
    Tier& source = *context_->tiers.Get(route.source);
    for (size_t i = 0; i < parts; ++i) {
      const Extent from = *source.Reserve(kBytes);
      source.Write(from, "", bytes_, [](const Status& status) { EXPECT_OK(status); });
      transfer->parts.emplace_back().Set(route.source, from);
      transfer->targets.push_back(*context_->tiers.Get(route.target)->Reserve(kBytes));
    }
    return transfer;
  }

  std::vector<std::byte> bytes_ = std::vector<std::byte>(kBytes);
  FakeClock clock_;
  InlineExecutor executor_;
  testing::FakeTier disk_{{.capacity_bytes = 4 << 20}};
  std::unique_ptr<HostTier> host_;
  std::unique_ptr<NodeContext> context_;
};

TEST_F(TransferTest, EndsOnceWhenTheLastPartIsStored) {
  constexpr size_t kParts = 3 * Transfer::kPartsAtOnce;
  const auto transfer = Make(kToDisk, kParts);
  disk_.HoldCallbacks();
  Transfer::Load(transfer);
  EXPECT_EQ(disk_.held(), Transfer::kPartsAtOnce);
  for (size_t i = 0; i + 1 < kParts; ++i) ASSERT_TRUE(disk_.RunOneHeld());
  EXPECT_EQ(transfer->ends, 0);
  disk_.RunHeld();
  EXPECT_EQ(transfer->ends, 1);
  EXPECT_OK(transfer->Outcome());
}

TEST_F(TransferTest, PartsThatAreReadIntoTheTargetNeedNoStore) {
  const auto transfer = Make(kToHost, 3);
  Transfer::Load(transfer);
  EXPECT_EQ(transfer->loads, 1);
  EXPECT_EQ(transfer->ends, 1);
  EXPECT_OK(transfer->Outcome());
}

TEST_F(TransferTest, AfterAnErrorItEndsWithTheLastPartUnderWayAndStartsNoOther) {
  const auto transfer = Make(kToHost, 2 * Transfer::kPartsAtOnce);
  disk_.HoldCallbacks();
  Transfer::Load(transfer);
  disk_.FailReads(1, Errorf(StatusCode::kDataLoss, "torn"));
  for (size_t i = 0; i + 1 < Transfer::kPartsAtOnce; ++i) ASSERT_TRUE(disk_.RunOneHeld());
  EXPECT_EQ(transfer->ends, 0);
  EXPECT_EQ(disk_.RunHeld(), 1u);
  EXPECT_EQ(transfer->loads, 0);
  EXPECT_EQ(transfer->ends, 1);
  EXPECT_EQ(transfer->Outcome().code(), StatusCode::kDataLoss);
}

TEST_F(TransferTest, ATierThatDestroysItsCallbacksEndsIt) {
  for (const Route& route : {kToDisk, kToHost}) {
    const auto transfer = Make(route, 3);
    disk_.HoldCallbacks();
    Transfer::Load(transfer);
    ASSERT_TRUE(disk_.RunOneHeld());
    disk_.Crash();
    EXPECT_EQ(transfer->ends, 1);
    EXPECT_EQ(transfer->Outcome().code(), StatusCode::kCancelled);
    disk_.HoldCallbacks(false);
  }
}

TEST_F(TransferTest, StopEndsOneThatHasNotBegun) {
  const auto transfer = Make(kToDisk, 1);
  Transfer::Stop(transfer, Errorf(StatusCode::kNotFound, "no such block"));
  EXPECT_EQ(transfer->ends, 1);
  EXPECT_EQ(transfer->Outcome().code(), StatusCode::kNotFound);
}

// Callbacks on several threads at the same time, some of which fail or are destroyed unused.
TEST_F(TransferTest, ManyThreadsEndItOnce) {
  constexpr size_t kThreads = 4;
  for (int round = 0; round < 50; ++round) {
    const auto transfer = Make(kToHost, Transfer::kPartsAtOnce);
    disk_.HoldCallbacks();
    Transfer::Load(transfer);
    if (round % 3 == 1) disk_.FailReads(1, Errorf(StatusCode::kDataLoss, "torn"));
    std::latch start(kThreads);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, drops = round % 3 == 2 && i == 0] {
        start.arrive_and_wait();
        if (drops) return disk_.Crash();
        while (disk_.RunOneHeld()) {
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(transfer->ends, 1);
    disk_.HoldCallbacks(false);
    disk_.FailReads(0, OkStatus());
    for (const PartPlace& part : transfer->parts) {
      if (round % 3 != 2) disk_.Release(part.In(TierKind::kDisk));
    }
    for (const Extent& extent : transfer->targets) host_->Release(extent);
  }
}

}  // namespace
}  // namespace cairn::cache
