// A whole worker on a device, over a fake device whose kernels are the real ones' emulation: cold,
// from the cache of another worker, and next to a worker on the CPU.

#include <gtest/gtest.h>

#include <map>

#include "services/worker/engine/worker_device.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/support/fake_kernels/forward_kernels.h"
#include "tests/support/fake_kernels/slice_kernels.h"
#include "tests/support/methods.h"
#include "tests/unit/worker/engine/engine_fixture.h"

namespace cairn::worker {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

using PushedParts = std::map<BlockKey, std::vector<std::byte>>;

// Keeps the parts that a worker pushes.
class RecordingClient final : public SharedClient {
 public:
  RecordingClient(InMemoryCacheClient& node, PushedParts* pushed)
      : SharedClient(node), pushed_(pushed) {}
  Result<std::vector<Status>> Push(const Digest& fingerprint,
                                   std::span<const client::PartToPush> parts,
                                   const client::PushOptions& options) override {
    for (const client::PartToPush& part : parts) {
      (*pushed_)[part.key].assign(part.bytes.begin(), part.bytes.end());
    }
    return SharedClient::Push(fingerprint, parts, options);
  }

 private:
  PushedParts* const pushed_;
};

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
  EXPECT_GT(first->GetStats().graphs.launches, 0u) << "steps that only decode are graphs";
  Idle(*first);
  const auto second = Worker(OnDevice());
  const GenerateSummary warm = Run(*second, Request(140, 1, 4));
  EXPECT_EQ(warm.fetched_tokens, 128u);
  ExpectSameAnswer(warm, cold);
}

// Encoded slices are decoded on the device where the library has kernels for that, and on the CPU
// where not: both give the same pages, so the same answers, wherever the prompt ends.
TEST_F(DeviceEngineTest, AnswersTheSameWhereverSlicesAreDecoded) {
  WorkerEngine::Options options = OnDevice();
  options.recipe = "turbo:bits=4";
  {
    const auto cold = Worker(options);
    EXPECT_EQ(Run(*cold, Request(130, 1, 1)).fetched_tokens, 0u);
    Idle(*cold);
  }
  const size_t lengths[] = {65, 130};
  std::vector<GenerateSummary> on_cpu;
  {
    const auto worker = Worker(options);
    for (const size_t length : lengths) {
      on_cpu.push_back(Run(*worker, Request(length, 1, 2)));
      EXPECT_EQ(on_cpu.back().fetched_tokens, length / 64 * 64);
    }
  }
  kernels::testing::AddSliceKernels(fake_.control());
  for (size_t i = 0; i < std::size(lengths); ++i) {
    // Beside the pass, and before it.
    options.prefix.overlap = i == 0;
    const auto worker = Worker(options);
    const uint64_t decoded = kernels::testing::DecodedSlices();
    const GenerateSummary answer = Run(*worker, Request(lengths[i], 1, 2));
    EXPECT_EQ(answer.fetched_tokens, on_cpu[i].fetched_tokens);
    ExpectSameAnswer(answer, on_cpu[i]);
    EXPECT_EQ(kernels::testing::DecodedSlices() - decoded,
              answer.fetched_tokens / kBlockTokens * kLayers);
  }
}

// The same for the rows that a selection kept.
TEST_F(DeviceEngineTest, AnswersTheSameWhereverKeptRowsAreDecoded) {
  if (!testing::kBuiltWithMethods) GTEST_SKIP() << testing::kNoMethods;
  WorkerEngine::Options options = OnDevice();
  options.recipe = "random:keep=0.3+turbo:bits=4";
  GenerateRequest request = Request(150, 1, 2);
  request.prefix_end = 128;
  {
    const auto cold = Worker(options);
    EXPECT_EQ(Run(*cold, request).fetched_tokens, 0u);
    Idle(*cold);
  }
  const GenerateSummary on_cpu = Run(*Worker(options), request);
  EXPECT_EQ(on_cpu.fetched_tokens, 128u);
  kernels::testing::AddSliceKernels(fake_.control());
  const uint64_t decoded = kernels::testing::DecodedSlices();
  const auto worker = Worker(options);
  const GenerateSummary on_device = Run(*worker, request);
  EXPECT_EQ(on_device.fetched_tokens, 128u);
  ExpectSameAnswer(on_device, on_cpu);
  EXPECT_EQ(kernels::testing::DecodedSlices() - decoded, 2 * kLayers * kKvHeads);
  EXPECT_GT(worker->GetStats().codecs.at(0).decode.bytes_out, 0u);
  // Where the device fails, the CPU goes on.
  const auto unlucky = Worker(options);
  fake_.control().fail("issue", 0, 1, device::Code::kOther);
  EXPECT_EQ(Run(*unlucky, request).prompt_logits_sha256, on_cpu.prompt_logits_sha256);
}

TEST_F(DeviceEngineTest, PushesTheSamePartsWhereverTheyAreEncoded) {
  WorkerEngine::Options options = OnDevice();
  std::map<std::string, PushedParts> parts[2];
  for (const bool on_device : {false, true}) {
    if (on_device) kernels::testing::AddSliceKernels(fake_.control());
    for (const char* const recipe : {"turbo:bits=4", "cachegen", "int8"}) {
      SCOPED_TRACE(recipe);
      options.recipe = recipe;
      node_.Clear();
      auto worker = WorkerEngine::Create(
          options, std::make_unique<RecordingClient>(node_, &parts[on_device ? 1 : 0][recipe]));
      ASSERT_OK(worker);
      const uint64_t encoded = kernels::testing::EncodedSlices();
      Run(**worker, Request(140, 1, 1));
      Idle(**worker);
      const uint64_t blocks = on_device ? 2 : 0;
      EXPECT_EQ((*worker)->GetStats().push.device_blocks, blocks);
      EXPECT_EQ(kernels::testing::EncodedSlices() - encoded, blocks * kLayers);
      EXPECT_GT((*worker)->GetStats().codecs.at(0).encode.bytes_out, 0u);
      EXPECT_EQ(node_.complete_blocks(), 2u);
    }
  }
  EXPECT_EQ(parts[0], parts[1]);
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
