// A whole worker on a device, over a fake device whose kernels are the real ones' emulation: cold,
// from the cache of another worker, and beside a worker on the CPU.

#include <gtest/gtest.h>

#include "services/worker/engine/worker_device.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/support/fake_kernels/forward_kernels.h"
#include "tests/unit/worker/engine/engine_fixture.h"

namespace cairn::worker {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

class DeviceEngineTest : public EngineFixture {
 protected:
  DeviceEngineTest() { kernels::testing::AddForwardKernels(fake_.control()); }
  static WorkerEngine::Options OnDevice() {
    WorkerEngine::Options options = Options();
    options.device = "cuda:0";
    options.device_library = device::fake::LibraryPath();
    options.device_kv_bytes = 8 << 20;
    options.max_context = 256;
    return options;
  }

  device::fake::FakeDevices fake_{{}};
};

TEST_F(DeviceEngineTest, AnswersTheSameColdAndFromTheCache) {
  const auto first = Worker(OnDevice());
  const GenerateSummary cold = Run(*first, Request(140, 1, 4));
  EXPECT_EQ(cold.fetched_tokens, 0u);
  Idle(*first);
  const auto second = Worker(OnDevice());
  const GenerateSummary warm = Run(*second, Request(140, 1, 4));
  EXPECT_EQ(warm.fetched_tokens, 128u);
  ExpectSameAnswer(warm, cold);
}

// Its KV has other last bits, so a worker on the CPU must not find it.
TEST_F(DeviceEngineTest, SharesNothingWithAWorkerOnTheCpu) {
  const auto on_device = Worker(OnDevice());
  Run(*on_device, Request(70, 1, 1));
  Idle(*on_device);
  const auto on_cpu = Worker();
  EXPECT_EQ(Run(*on_cpu, Request(70, 1, 1)).fetched_tokens, 0u);
}

TEST_F(DeviceEngineTest, ALostDeviceEndsRequestsWithAnError) {
  const auto worker = Worker(OnDevice());
  fake_.control().lose(0);
  EXPECT_THAT(worker->Generate(Request(20, 1, 1), {}).status(),
              StatusIs(StatusCode::kUnavailable, HasSubstr("lost")));
  EXPECT_THAT(worker->Generate(Request(20, 2, 1), {}).status(),
              StatusIs(StatusCode::kUnavailable, HasSubstr("lost")));
}

TEST_F(DeviceEngineTest, WrongNamesOfDevicesAreErrorsThatSayWhatIsExpected) {
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "CUDA:0"}) {
    EXPECT_THAT(OpenWorkerDevice(name, device::fake::LibraryPath()).status(),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("expected cpu, or cuda:N")))
        << name;
  }
  EXPECT_THAT(OpenWorkerDevice("cuda:7", device::fake::LibraryPath()).status(),
              StatusIs(StatusCode::kNotFound, HasSubstr("7")));
  EXPECT_THAT(OpenWorkerDevice("cuda:0", "/no/such/library.so").status(),
              StatusIs(StatusCode::kNotFound, HasSubstr("/no/such/library.so")));
  const auto cpu = OpenWorkerDevice("cpu", "/no/such/library.so");
  ASSERT_OK(cpu);
  EXPECT_EQ(*cpu, nullptr);
}

TEST_F(DeviceEngineTest, ExactArithmeticIsRefused) {
  WorkerEngine::Options options = OnDevice();
  options.arithmetic = Arithmetic::kFloat32;
  EXPECT_THAT(WorkerEngine::Create(options, nullptr).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("expected fast")));
}

}  // namespace
}  // namespace cairn::worker
