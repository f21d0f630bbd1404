// Two ranks of the fake NCCL in one process, over memory of the fake device.

#include "common/link/nccl/communicator.h"

#include <cstring>
#include <thread>

#include "common/status/matchers.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/support/fake_nccl/fake_library.h"

namespace cairn::link::nccl {
namespace {

using cairn::testing::StatusIs;
using ::testing::_;
using ::testing::HasSubstr;

constexpr uint64_t kBytes = 1 << 20;  // Larger than what is on its way at a time.

struct Rank {
  std::shared_ptr<device::Device> device;
  device::DeviceMemory memory;
  std::shared_ptr<Communicator> communicator;
};

class NcclCommunicatorTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  NcclCommunicatorTest() : fake_({.seed = GetParam()}) {}

  void Start(const std::string& options, bool windows) {
    nccl_.emplace(options);
    Result<UniqueId> id = Errorf(StatusCode::kUnknown, "");
    for (int number : {0, 1}) {
      Rank& rank = ranks_[number];
      rank.device = fake_.Open();
      rank.memory = *rank.device->Allocate(kBytes, true);
      Maker maker(nccl_->library(), rank.device);
      if (number == 0) id = maker.NewId();
      ASSERT_OK(id);
      rank.communicator = maker.Make(
          *id, number,
          windows ? std::vector<CommunicatorMaker::Window>{{rank.memory.address(), kBytes}}
                  : std::vector<CommunicatorMaker::Window>{});
    }
    std::memset(Bytes(0), 0, kBytes);
    for (uint64_t i = 0; i < kBytes; ++i) Bytes(1)[i] = static_cast<uint8_t>(i * 31 + i / 251);
  }
  void Join() {
    for (Rank& rank : ranks_) ASSERT_OK(rank.communicator->Join());
    ASSERT_OK(Finish());
  }
  // Until both have ended what they began, or one has failed.
  Status Finish() {
    bool over[2] = {false, false};
    while (!over[0] || !over[1]) {
      for (int number : {0, 1}) {
        if (over[number]) continue;
        const Result<bool> ended = ranks_[number].communicator->Poll();
        if (!ended.ok()) return ended.status();
        over[number] = *ended;
      }
    }
    return OkStatus();
  }
  ~NcclCommunicatorTest() override {
    for (Rank& rank : ranks_) {
      if (rank.communicator == nullptr) continue;
      rank.communicator->Revoke();
      rank.communicator->Abort();
    }
  }
  uint8_t* Bytes(int number) { return reinterpret_cast<uint8_t*>(ranks_[number].memory.address()); }
  // Three parts, in another order at the target.
  Status MoveParts(Way way, uint64_t bytes_more = 0) {
    Move to{.receives = true, .way = way}, from{.way = way};
    const uint64_t sizes[] = {300'000, 1, 500'001}, sources[] = {5, 400'000, 500'000},
                   targets[] = {600'000, 599'999, 3};
    for (int i = 0; i < 3; ++i) {
      to.parts.push_back({.address = ranks_[0].memory.address() + targets[i], .bytes = sizes[i]});
      from.parts.push_back({.address = ranks_[1].memory.address() + sources[i],
                            .bytes = sizes[i] + bytes_more,
                            .window = 0,
                            .offset = targets[i]});
    }
    CAIRN_RETURN_IF_ERROR(ranks_[0].communicator->Issue(to));
    CAIRN_RETURN_IF_ERROR(ranks_[1].communicator->Issue(from));
    CAIRN_RETURN_IF_ERROR(Finish());
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(std::memcmp(Bytes(0) + targets[i], Bytes(1) + sources[i], sizes[i]), 0) << i;
    }
    return OkStatus();
  }

  device::fake::FakeDevices fake_;
  std::optional<fake::FakeNccl> nccl_;
  Rank ranks_[2];
};

INSTANTIATE_TEST_SUITE_P(Seeds, NcclCommunicatorTest, ::testing::Values(1, 2, 3));

TEST_P(NcclCommunicatorTest, SendsPartsWhereThereAreNoWindows) {
  Start("", /*windows=*/false);
  Join();
  EXPECT_FALSE(ranks_[0].communicator->puts());
  for (int i = 0; i < 3; ++i) EXPECT_OK(MoveParts(Way::kSend));
  EXPECT_EQ(nccl_->control().calls("PutSignal"), 0u);
  EXPECT_EQ(nccl_->control().calls("Send"), 9u);
}

TEST_P(NcclCommunicatorTest, PutsPartsIntoWindows) {
  Start("", /*windows=*/true);
  Join();
  EXPECT_TRUE(ranks_[0].communicator->puts() && ranks_[1].communicator->puts());
  for (int i = 0; i < 3; ++i) EXPECT_OK(MoveParts(Way::kPut));
  EXPECT_EQ(nccl_->control().calls("Send"), 0u);
  EXPECT_OK(MoveParts(Way::kSend)) << "both ways on one communicator";
}

TEST_P(NcclCommunicatorTest, AMachineWithoutSymmetricMemoryGivesNoWindows) {
  Start("no_windows", /*windows=*/true);
  Join();
  EXPECT_FALSE(ranks_[0].communicator->puts() || ranks_[1].communicator->puts());
  EXPECT_OK(MoveParts(Way::kSend));
}

TEST_P(NcclCommunicatorTest, CountsThatDifferAreAnError) {
  Start("", /*windows=*/false);
  Join();
  EXPECT_THAT(MoveParts(Way::kSend, /*bytes_more=*/1),
              StatusIs(StatusCode::kInternal, HasSubstr("invalid usage")));
  EXPECT_THAT(nccl_->TakeReports(), HasSubstr("a receive of 300000 bytes"));
}

TEST_P(NcclCommunicatorTest, EachCallThatFailsIsNamed) {
  for (const char* call : {"CommInitRankConfig", "CommGetAsyncError", "CommWindowRegister"}) {
    Start("fail=" + std::string(call) + ":0", /*windows=*/true);
    Status status;
    for (Rank& rank : ranks_) {
      if (status.ok()) status = rank.communicator->Join();
    }
    if (status.ok()) status = Finish();
    EXPECT_THAT(status, StatusIs(StatusCode::kInternal, HasSubstr(call)));
    for (Rank& rank : ranks_) {
      rank.communicator->Revoke();
      rank.communicator->Abort();
      rank.communicator = nullptr;
      rank.memory.Release();
    }
    nccl_.reset();
  }
  for (const char* call : {"GroupStart", "Send", "Recv", "GroupEnd", "PutSignal", "WaitSignal"}) {
    const bool put = std::string(call).find("Signal") != std::string::npos;
    Start("fail=" + std::string(call) + ":0", put);
    Join();
    EXPECT_THAT(MoveParts(put ? Way::kPut : Way::kSend),
                StatusIs(StatusCode::kInternal, HasSubstr(call)));
    for (Rank& rank : ranks_) {
      rank.communicator->Revoke();
      rank.communicator->Abort();
      rank.communicator = nullptr;
      rank.memory.Release();
    }
    nccl_.reset();
  }
}

TEST_P(NcclCommunicatorTest, AnAbortEndsAMoveWhosePeerNeverComes) {
  Start("", /*windows=*/false);
  Join();
  Move to{.receives = true, .parts = {{.address = ranks_[0].memory.address(), .bytes = kBytes}}};
  ASSERT_OK(ranks_[0].communicator->Issue(to));
  for (int i = 0; i < 100; ++i) {
    const Result<bool> ended = ranks_[0].communicator->Poll();
    ASSERT_OK(ended);
    EXPECT_FALSE(*ended);
  }
  ranks_[0].communicator->Revoke();
  ranks_[0].communicator->Abort();
  ranks_[0].communicator = nullptr;
  EXPECT_EQ(nccl_->control().communicators(), 1u);
}

TEST_P(NcclCommunicatorTest, ALostDeviceIsAnError) {
  Start("", /*windows=*/false);
  Join();
  fake_.control().lose(0);
  EXPECT_THAT(MoveParts(Way::kSend), StatusIs(StatusCode::kUnavailable, _));
}

}  // namespace
}  // namespace cairn::link::nccl
