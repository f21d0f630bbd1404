// The fake NCCL finds the mistakes that it claims to find.

#include <cstring>

#include "common/status/matchers.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/support/fake_nccl/fake_library.h"

namespace cairn::link::nccl {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBytes = 64 << 10;

class FakeNcclTest : public ::testing::Test {
 protected:
  FakeNcclTest() : library_(nccl_.library()), functions_(library_->functions()) {
    device_ = fake_.Open();
    for (int rank : {0, 1}) {
      memories_[rank] = *device_->Allocate(kBytes, false);
      streams_[rank] = *device_->NewStream();
      std::memset(At(rank), rank, kBytes);
    }
    EXPECT_EQ(functions_.get_unique_id(&id_), Answer::kSuccess);
  }
  ~FakeNcclTest() override {
    for (int rank : {0, 1}) {
      if (communicators_[rank] == nullptr) continue;
      EXPECT_EQ(functions_.comm_abort(communicators_[rank]), Answer::kSuccess);
      // Work on the stream ends by it.
      const device::Event event = *device_->NewEvent();
      EXPECT_OK(streams_[rank].Record(event));
      EXPECT_OK(event.Synchronize());
    }
  }
  void Begin(int rank) {
    Config config;
    config.blocking = 0;
    EXPECT_EQ(functions_.comm_init_rank_config(&communicators_[rank], 2, id_, rank, &config),
              Answer::kInProgress);
  }
  void Join() {
    for (int rank : {0, 1}) Begin(rank);
    for (int rank : {0, 1}) EXPECT_EQ(State(rank), Answer::kSuccess);
  }
  Answer State(int rank) {
    Answer state = Answer::kSuccess;
    EXPECT_EQ(functions_.comm_get_async_error(communicators_[rank], &state), Answer::kSuccess);
    return state;
  }
  void* At(int rank) const { return reinterpret_cast<void*>(memories_[rank].address()); }
  Answer Send() {
    return functions_.send(At(1), kBytes, kUint8, 0, communicators_[1], streams_[1].native());
  }
  Answer Receive() {
    return functions_.recv(At(0), kBytes, kUint8, 1, communicators_[0], streams_[0].native());
  }

  device::fake::FakeDevices fake_;
  fake::FakeNccl nccl_;
  const std::shared_ptr<const Library> library_;
  const Functions& functions_;
  std::shared_ptr<device::Device> device_;
  device::DeviceMemory memories_[2];
  device::Stream streams_[2];
  UniqueIdBytes id_{};
  CommHandle* communicators_[2] = {nullptr, nullptr};
};

TEST_F(FakeNcclTest, AnEventThatIsRecordedTooEarlyHappensWithoutTheBytes) {
  Join();
  EXPECT_EQ(Receive(), Answer::kInProgress);
  EXPECT_EQ(Send(), Answer::kInProgress);
  // The mistake: the state was not asked for.
  const device::Event event = *device_->NewEvent();
  EXPECT_OK(streams_[0].Record(event));
  EXPECT_OK(event.Synchronize());
  EXPECT_EQ(*static_cast<uint8_t*>(At(0)), 0) << "old bytes";
  // As it is right.
  for (int rank : {0, 1}) {
    while (State(rank) == Answer::kInProgress) {
    }
  }
  EXPECT_OK(streams_[0].Record(event));
  EXPECT_OK(event.Synchronize());
  EXPECT_EQ(*static_cast<uint8_t*>(At(0)), 1);
}

TEST_F(FakeNcclTest, CallsWhileItIsInProgressAreReported) {
  Begin(1);
  EXPECT_EQ(State(1), Answer::kInProgress) << "the other rank has not come";
  EXPECT_EQ(Send(), Answer::kInvalidUsage);
  EXPECT_THAT(nccl_.TakeReports(), HasSubstr("Send is called while it is in progress"));
  Begin(0);
  EXPECT_EQ(State(1), Answer::kSuccess);
  EXPECT_EQ(Send(), Answer::kInProgress);
  EXPECT_EQ(Send(), Answer::kInvalidUsage);
  EXPECT_THAT(nccl_.TakeReports(), HasSubstr("Send is called while it is in progress"));
}

TEST_F(FakeNcclTest, CallsAfterItWasRevokedAreReported) {
  Join();
  EXPECT_EQ(functions_.comm_revoke(communicators_[1], 0), Answer::kSuccess);
  EXPECT_EQ(Send(), Answer::kInvalidUsage);
  EXPECT_THAT(nccl_.TakeReports(), HasSubstr("Send is called after the communicator was revoked"));
  EXPECT_EQ(functions_.comm_abort(communicators_[1]), Answer::kSuccess);
  EXPECT_EQ(Send(), Answer::kInvalidArgument);
  EXPECT_THAT(nccl_.TakeReports(), HasSubstr("does not exist"));
  communicators_[1] = nullptr;
}

TEST_F(FakeNcclTest, PutsWithoutAWindowAreReported) {
  Join();
  const auto put = [this](WindowHandle* window) {
    return functions_.put_signal(At(1), kBytes, kUint8, 0, window, 0, 0, 0, 0, communicators_[1],
                                 streams_[1].native());
  };
  EXPECT_EQ(put(nullptr), Answer::kInvalidArgument);
  EXPECT_THAT(nccl_.TakeReports(), HasSubstr("a put from or to no window"));
}

TEST_F(FakeNcclTest, ABlockingCommunicatorIsReported) {
  Config config;
  EXPECT_EQ(functions_.comm_init_rank_config(&communicators_[0], 2, id_, 0, &config),
            Answer::kInvalidArgument);
  EXPECT_THAT(nccl_.TakeReports(), HasSubstr("configuration"));
}

}  // namespace
}  // namespace cairn::link::nccl
