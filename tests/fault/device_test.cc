// A real node on a device that hangs, is slow, fails for a while, or loses its power.

#include <gtest/gtest.h>

#include <filesystem>

#include "cairn/common/clock.h"
#include "common/metrics/admin_server.h"
#include "tests/fault/support/fault_support.h"
#include "tests/support/fault_device.h"

namespace cairn::fault {
namespace {

using testing::DeviceMode;
using testing::PowerLossStyle;
using testing::PreloadedDevice;

class FaultDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string library = testing::Binary("libcairn_fault_device.so");
    ASSERT_TRUE(std::filesystem::exists(library)) << library;
    device_.emplace(library, disk_);
    auto node =
        Node::Start({"--disk.path", disk_, "--disk.capacity", "256MiB", "--host.capacity", "64MiB",
                     "--disk.min_free", "0", "--disk.flush_after", "50ms", "--disk.io_backend",
                     "threads", "--drain.grace", "0s", "--drain.flush_timeout", "2s"});
    ASSERT_TRUE(node.ok()) << ToString(node.status());
    node_ = *std::move(node);
    client_ = ConnectAndOpen(node_->address(), model_);
  }

  void WriteSome(uint64_t first, uint64_t last) {
    for (uint64_t prompt = first; prompt < last; ++prompt) {
      const WriteOutcome outcome =
          Write(*client_, model_, model_.MakePrompt(prompt), 0, model_.whole());
      ASSERT_TRUE(outcome.status.ok()) << ToString(outcome.status);
      ASSERT_EQ(outcome.refused_parts, 0u) << ToString(outcome.refused);
    }
  }
  // Blocks of these prompts that are there; every byte is verified.
  uint64_t ReadSome(uint64_t first, uint64_t last) {
    uint64_t complete = 0;
    for (uint64_t prompt = first; prompt < last; ++prompt) {
      const ReadOutcome outcome = Read(*client_, model_, model_.MakePrompt(prompt));
      EXPECT_TRUE(outcome.status.ok()) << ToString(outcome.status);
      EXPECT_TRUE(outcome.wrong.empty()) << outcome.wrong.front();
      complete += outcome.complete_blocks;
    }
    return complete;
  }
  uint64_t BlocksOf(uint64_t first, uint64_t last) const {
    uint64_t blocks = 0;
    for (uint64_t prompt = first; prompt < last; ++prompt)
      blocks += model_.MakePrompt(prompt).size();
    return blocks;
  }
  bool Alive() const {
    return metrics::HttpGet(node_->admin(), "/livez", std::chrono::seconds(60)).ok();
  }
  void Reopen() {
    ASSERT_TRUE(
        WaitUntil([&] { return client_->OpenNamespace(model_.spec()).ok(); }, seconds(120)));
  }

  std::mt19937_64 random_{Seed()};
  const TemporaryDirectory directory_;
  const std::string disk_ = directory_.path() + "/disk";
  const FaultModelOptions options_{.dim = 16};
  const FaultModel model_{options_};
  std::optional<PreloadedDevice> device_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<client::CacheClient> client_;
};

TEST_F(FaultDeviceTest, HangsInServiceAndAtAFlush) {
  WriteSome(0, 10);
  ASSERT_TRUE(client_->Flush({.deadline = seconds(20)}).ok());
  device_->Set(DeviceMode::kHangs);
  WriteSome(10, 20);
  const TimePoint begin = SteadyClock::Get().Now();
  const Status flushed = client_->Flush({.deadline = seconds(1)});
  EXPECT_EQ(flushed.code(), StatusCode::kDeadlineExceeded) << ToString(flushed);
  EXPECT_LT(SteadyClock::Get().Now() - begin, seconds(60));
  EXPECT_EQ(ReadSome(0, 20), BlocksOf(0, 20)) << "RAM serves on";
  EXPECT_TRUE(client_->Stat().ok());
  EXPECT_TRUE(Alive());
  device_->Set(DeviceMode::kNormal);
  EXPECT_TRUE(
      WaitUntil([&] { return client_->Flush({.deadline = seconds(2)}).ok(); }, seconds(120)))
      << Describe(*client_->Stat());
  node_->Kill();
  ASSERT_TRUE(node_->Restart().ok());
  Reopen();
  EXPECT_EQ(ReadSome(0, 20), BlocksOf(0, 20));
}

TEST_F(FaultDeviceTest, HangsAtSigterm) {
  WriteSome(0, 5);
  ASSERT_TRUE(client_->Flush({.deadline = seconds(20)}).ok());
  device_->Set(DeviceMode::kHangs);
  WriteSome(5, 10);
  node_->process().Signal(SIGTERM);
  const auto exit = node_->process().WaitExit(seconds(120));
  ASSERT_TRUE(exit.ok()) << "SIGTERM waits for a device that hangs";
  EXPECT_TRUE(exit->exited);
  EXPECT_EQ(exit->code, 1);
  EXPECT_NE(node_->process().err().find("stop_hangs"), std::string::npos) << node_->process().err();
  device_->Set(DeviceMode::kNormal);
  ASSERT_TRUE(node_->Restart().ok());
  Reopen();
  EXPECT_GE(ReadSome(0, 5), BlocksOf(0, 5)) << "flushed before";
  ReadSome(5, 10);
}

TEST_F(FaultDeviceTest, IsSlow) {
  WriteSome(0, 5);
  device_->Set(DeviceMode::kSlow);
  WriteSome(5, 15);
  EXPECT_TRUE(client_->Flush({.deadline = seconds(60)}).ok());
  device_->Set(DeviceMode::kNormal);
  node_->Kill();
  ASSERT_TRUE(node_->Restart().ok());
  Reopen();
  EXPECT_EQ(ReadSome(0, 15), BlocksOf(0, 15));
}

TEST_F(FaultDeviceTest, FailsInBursts) {
  auto loader =
      Loader::Start(node_->address(), options_, random_() % 1'000'000, {"--mode", "both"});
  ASSERT_TRUE(loader.ok()) << ToString(loader.status());
  for (uint32_t burst = 0; burst < Rounds(20); ++burst) {
    device_->Set(DeviceMode::kFails);
    EXPECT_TRUE(Alive());
    ReadSome(burst, burst + 1);
    device_->Set(DeviceMode::kNormal);
    WriteSome(1000 + burst, 1001 + burst);
    ASSERT_TRUE(node_->process().running()) << node_->process().err();
  }
  const Result<std::string> report = (*loader)->Finish();
  ASSERT_TRUE(report.ok()) << ToString(report.status());
  EXPECT_EQ(Counter(*report, "mismatches"), 0u) << *report;
  EXPECT_TRUE(
      WaitUntil([&] { return client_->Flush({.deadline = seconds(2)}).ok(); }, seconds(120)))
      << Describe(*client_->Stat());
  node_->Kill();
  ASSERT_TRUE(node_->Restart().ok());
  Reopen();
  EXPECT_EQ(ReadSome(1000, 1000 + Rounds(20)), BlocksOf(1000, 1000 + Rounds(20)));
}

TEST_F(FaultDeviceTest, LosesItsPower) {
  std::map<uint64_t, uint64_t> promised;
  uint64_t blocks = 0;
  const uint32_t losses = Rounds(12);
  for (uint32_t loss = 0; loss < losses && !HasFailure(); ++loss) {
    SCOPED_TRACE(loss);
    auto loader = Loader::Start(node_->address(), options_, random_() % 1'000'000,
                                {"--mode", "both", "--flush_every", "10"});
    ASSERT_TRUE(loader.ok()) << ToString(loader.status());
    // However slow the machine is, some flushes return.
    if (loss % 2 == 0) {
      ASSERT_TRUE(WaitUntil([&] { return !(*loader)->Flushed().empty(); }, seconds(120)))
          << (*loader)->process().err();
    }
    // Not a wait for something: the moment of the loss is what is random.
    std::this_thread::sleep_for(milliseconds(100 + random_() % 400));
    node_->Kill();
    (*loader)->process().Kill();
    for (const auto& [prompt, count] : (*loader)->Flushed())
      promised[prompt] = std::max(promised[prompt], count);
    device_->LosePower({.kept = static_cast<uint32_t>(random_() % 90),
                        .zeroed = static_cast<uint32_t>(random_() % 10),
                        .torn = static_cast<uint32_t>(random_() % 10)},
                       random_);
    ASSERT_TRUE(node_->Restart().ok());
    Reopen();
    for (const auto& [prompt, count] : promised) {
      const ReadOutcome outcome = Read(*client_, model_, model_.MakePrompt(prompt));
      EXPECT_TRUE(outcome.status.ok()) << ToString(outcome.status);
      ASSERT_TRUE(outcome.wrong.empty()) << outcome.wrong.front();
      EXPECT_GE(outcome.complete_prefix, count)
          << "prompt " << prompt << ": matched " << outcome.matched_blocks << ", failed "
          << outcome.failed_blocks;
      blocks += count;
    }
  }
  std::printf("%u power losses: %llu flushed blocks looked for\n", losses,
              static_cast<unsigned long long>(blocks));
  EXPECT_GT(blocks, 0u);
}

}  // namespace
}  // namespace cairn::fault
