// The C++ client at a real node with a device tier on the fake device: it reads chunks of the GPU
// by descriptor, and gets the same bytes another way when a chunk is wrong, or its own GPU is.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "cairn/client/connect.h"
#include "clients/cpp/src/device/device_importer.h"
#include "common/status/matchers.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/support/process.h"
#include "tests/unit/clients/cpp/patient_calls.h"

namespace cairn::client {
namespace {

using cairn::testing::CacheNode;
using client::testing::Chain;
using client::testing::CheckingSink;
using client::testing::kCall;
using client::testing::kMatch;
using client::testing::SmallSpec;
using device::fake::FakeDevices;
using std::chrono::seconds;
using ::testing::IsEmpty;

// Keeps what was imported, so that a test can write there, as any client of the tenant can.
class NotingImporter final : public DeviceImporter {
 public:
  explicit NotingImporter(std::shared_ptr<DeviceImporter> importer)
      : importer_(std::move(importer)) {}
  std::vector<std::string> uuids() const override { return importer_->uuids(); }
  Result<std::shared_ptr<const DeviceChunk>> Import(const std::string& uuid, int descriptor,
                                                    uint64_t bytes) override {
    CAIRN_ASSIGN_OR_RETURN(auto chunk, importer_->Import(uuid, descriptor, bytes));
    const std::lock_guard lock(mu_);
    chunks_.push_back(chunk);
    return chunk;
  }
  size_t count() const {
    const std::lock_guard lock(mu_);
    return chunks_.size();
  }
  // Inverts the first place with these bytes. The fake's memory is the host's.
  bool Damage(std::span<const std::byte> what) {
    const std::lock_guard lock(mu_);
    for (const auto& weak : chunks_) {
      const auto chunk = weak.lock();
      if (chunk == nullptr) continue;
      const std::span bytes(reinterpret_cast<std::byte*>(chunk->address()), chunk->bytes());
      const auto found = std::search(bytes.begin(), bytes.end(), what.begin(), what.end());
      if (found == bytes.end()) continue;
      *found ^= std::byte{1};
      return true;
    }
    return false;
  }

 private:
  const std::shared_ptr<DeviceImporter> importer_;
  mutable std::mutex mu_;
  std::vector<std::weak_ptr<const DeviceChunk>> chunks_;
};

class NodeChunksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("CAIRN_FAKE_DEVICE", "seed=5", 1);
    auto node = CacheNode::Start({"--device.library", device::fake::LibraryPath(),
                                  "--device.capacity", "8MiB", "--device.chunk", "1MiB"});
    unsetenv("CAIRN_FAKE_DEVICE");
    ASSERT_OK(node);
    node_ = std::move(*node);
    auto importer = NewDeviceImporter(fake_.Open());
    ASSERT_OK(importer);
    importer_ = std::make_shared<NotingImporter>(*std::move(importer));
    Connect();
  }
  void Connect() {
    auto client = client::Connect({.address = node_->address(),
                                   .client_name = "node_chunks_test",
                                   .tenant = "default",
                                   .devices = importer_});
    ASSERT_OK(client);
    client_ = std::move(*client);
    ASSERT_OK(client_->OpenNamespace(spec_, kCall));
  }
  // Stores the chain, and reads it until all of it is on the GPU.
  void BringToTheGpu() {
    client::testing::Store(*client_, spec_, chain_);
    const auto until = SteadyClock::Get().Now() + seconds(120);
    while (Match().tiers.front().tier != TierKind::kDevice || Match().tiers.size() > 1) {
      ASSERT_LT(SteadyClock::Get().Now(), until) << "the blocks stay in host";
    }
    // On a busy machine a client may find the same-node path late, and reads over gRPC until then.
    do {
      ASSERT_LT(SteadyClock::Get().Now(), until) << "no fetch takes the same-node path";
      earlier_over_grpc_ = ByPath(Path::kGrpc);
      ExpectAll();
    } while (OverGrpc() > 0);
  }
  MatchOutcome Match() {
    auto match = client_->Match(Fingerprint(spec_), chain_.keys, kMatch);
    CAIRN_CHECK(match.ok() && match->matched_blocks == chain_.keys.size());
    return *std::move(match);
  }
  // Fetches everything, and checks it.
  void ExpectAll() {
    const MatchOutcome match = Match();
    CheckingSink sink(spec_, chain_.keys);
    ASSERT_OK(client_->Fetch(match.lease, {}, sink, {.progress = seconds(60)}));
    EXPECT_EQ(sink.slices, chain_.keys.size() * 4);
    EXPECT_EQ(sink.wrong, 0u);
    EXPECT_THAT(sink.failed, IsEmpty());
  }
  uint64_t FromDevice() const {
    return client_->GetStats().fetched_bytes[static_cast<size_t>(TierKind::kDevice)];
  }
  uint64_t ByPath(Path path) const {
    return client_->GetStats().fetched_bytes_by_path[static_cast<size_t>(path)];
  }
  // Bytes since the same-node path was found.
  uint64_t OverGrpc() const { return ByPath(Path::kGrpc) - earlier_over_grpc_; }

  FakeDevices fake_;
  const NamespaceSpec spec_ = SmallSpec();
  const Chain chain_{spec_, 20};
  const uint64_t bytes_ = 20 * 3 * spec_.layout.SliceBytes(0, 0, 6);
  std::unique_ptr<CacheNode> node_;
  std::shared_ptr<NotingImporter> importer_;
  std::unique_ptr<CacheClient> client_;
  uint64_t earlier_over_grpc_ = 0;
};

TEST_F(NodeChunksTest, BlocksAreReadInTheNodesMemoryOfTheGpu) {
  BringToTheGpu();
  const uint64_t before = FromDevice();
  ExpectAll();
  EXPECT_EQ(FromDevice() - before, bytes_);
  EXPECT_EQ(OverGrpc(), 0u);
  EXPECT_GE(importer_->count(), 1u);
  // A client without the GPU gets the same blocks in host.
  importer_ = nullptr;
  Connect();
  ExpectAll();
  EXPECT_EQ(client_->GetStats().corrupt_slices, 0u);
}

TEST_F(NodeChunksTest, ABitFlipInAChunkCostsTheWayAndTheNodeForgetsTheCopy) {
  BringToTheGpu();
  const auto data = testing::SliceData(spec_, chain_.keys[7], 1, spec_.layout.WholeRect());
  ASSERT_TRUE(importer_->Damage(data));
  ExpectAll();
  EXPECT_EQ(client_->GetStats().corrupt_slices, 1u);
  EXPECT_GT(OverGrpc(), 0u) << "the block came out of host";
  // The copy that was wrong is gone: nobody finds it again.
  ExpectAll();
  EXPECT_EQ(client_->GetStats().corrupt_slices, 1u);
}

TEST_F(NodeChunksTest, AClientWhoseGpuIsLostReadsInHost) {
  BringToTheGpu();
  ExpectAll();
  fake_.control().lose(0);
  ExpectAll();
  EXPECT_EQ(client_->GetStats().corrupt_slices, 0u);
  EXPECT_EQ(OverGrpc(), bytes_);
}

TEST_F(NodeChunksTest, ANodeThatDiesLeavesNothingThatIsUsed) {
  BringToTheGpu();
  ExpectAll();
  const MatchOutcome match = Match();
  node_->process().Kill();
  CheckingSink sink(spec_, chain_.keys);
  // Whatever comes, comes out of memory that stays mapped, and is right.
  (void)client_->Fetch(match.lease, {}, sink, {.deadline = seconds(2)});
  EXPECT_EQ(sink.wrong, 0u);
}

}  // namespace
}  // namespace cairn::client
