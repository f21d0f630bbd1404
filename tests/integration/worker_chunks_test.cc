// A worker on a device next to a real node with a device tier, both on the fake device: encoded
// slices are decoded where they lie in the node's chunks, and the answers are those of the host's
// way.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "cairn/client/connect.h"
#include "services/worker/engine/worker_device.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/support/fake_kernels/forward_kernels.h"
#include "tests/support/fake_kernels/slice_kernels.h"
#include "tests/support/process.h"
#include "tests/unit/worker/engine/engine_fixture.h"

namespace cairn::worker {
namespace {

using cairn::testing::CacheNode;
using device::fake::FakeDevices;
using std::chrono::seconds;

class WorkerChunksTest : public EngineFixture {
 protected:
  void SetUp() override {
    setenv("CAIRN_FAKE_DEVICE", "seed=9", 1);
    auto node = CacheNode::Start({"--device.library", device::fake::LibraryPath(),
                                  "--device.capacity", "8MiB", "--device.chunk", "1MiB"});
    unsetenv("CAIRN_FAKE_DEVICE");
    ASSERT_OK(node);
    cache_ = std::move(*node);
    kernels::testing::AddForwardKernels(fake_.control());
    kernels::testing::AddSliceKernels(fake_.control());
  }
  std::unique_ptr<client::CacheClient> Client(bool with_device) {
    client::ConnectOptions connection = {.address = cache_->address(),
                                         .client_name = "worker_chunks_test"};
    if (with_device) {
      auto importer = OpenWorkerImporter("cuda:0", device::fake::LibraryPath());
      EXPECT_OK(importer);
      connection.devices = *std::move(importer);
    }
    auto client = client::Connect(connection);
    EXPECT_OK(client);
    return *std::move(client);
  }
  std::unique_ptr<WorkerEngine> Start(const std::string& recipe, bool with_device = true) {
    WorkerEngine::Options options = Options();
    options.device = "cuda:0";
    options.device_library = device::fake::LibraryPath();
    options.device_kv_bytes = 8 << 20;
    options.max_context = 512;
    options.recipe = recipe;
    auto engine = WorkerEngine::Create(options, Client(with_device));
    EXPECT_OK(engine);
    return *std::move(engine);
  }
  // Blocks and bytes that were read in the node's device tier.
  std::pair<uint64_t, uint64_t> OnDevice() {
    const auto client = Client(/*with_device=*/false);
    const auto stat = client->Stat({.deadline = seconds(60)});
    EXPECT_OK(stat);
    for (const auto& tier : stat->tiers) {
      if (tier.tier == TierKind::kDevice) return {tier.blocks, tier.read_bytes};
    }
    return {};
  }
  void WaitForDevice(uint64_t blocks) {
    const auto until = SteadyClock::Get().Now() + seconds(120);
    while (OnDevice().first < blocks) {
      ASSERT_LT(SteadyClock::Get().Now(), until) << "the blocks stay in host";
    }
  }

  FakeDevices fake_{{}};
  std::unique_ptr<CacheNode> cache_;
};

TEST_F(WorkerChunksTest, AnswersAreThoseOfTheHostsWay) {
  for (const char* const recipe : {"turbo:bits=4", "raw"}) {
    SCOPED_TRACE(recipe);
    const uint64_t before = OnDevice().first;
    const GenerateRequest request = Request(130, 1, 2);
    {
      const auto cold = Start(recipe);
      EXPECT_EQ(Run(*cold, request).fetched_tokens, 0u);
      Idle(*cold);
    }
    // Over gRPC and out of host: a client without the GPU. Its match brings the blocks there.
    GenerateSummary host;
    {
      const auto worker = Start(recipe, /*with_device=*/false);
      host = Run(*worker, request);
      EXPECT_EQ(host.fetched_tokens, 128u);
    }
    WaitForDevice(before + 2);
    const auto worker = Start(recipe);
    uint64_t decoded = 0;
    GenerateSummary warm;
    // On a busy machine a client may find the same-node path late, and reads over gRPC until then.
    const auto until = SteadyClock::Get().Now() + seconds(120);
    do {
      decoded = kernels::testing::DecodedSlices();
      warm = Run(*worker, request);
    } while (warm.fetch_path != client::Path::kLocal && SteadyClock::Get().Now() < until);
    EXPECT_EQ(warm.fetched_tokens, 128u);
    EXPECT_EQ(warm.fetch_path, client::Path::kLocal);
    EXPECT_GT(warm.fetched.device, 0u);
    EXPECT_EQ(warm.fetched.device, warm.fetched.total());
    ExpectSameAnswer(warm, host);
    EXPECT_EQ(kernels::testing::DecodedSlices() - decoded, 2u * kLayers);
  }
}

}  // namespace
}  // namespace cairn::worker
