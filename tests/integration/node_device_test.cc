// A real node with a device tier on the fake device: blocks go there and come back, and whatever is
// missing or lost costs the tier alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/metrics/admin_server.h"
#include "common/status/matchers.h"
#include "tests/integration/node_client.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/support/process.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::chrono::seconds kTimeout(20);

class NodeDeviceTest : public ::testing::Test {
 protected:
  // `fake`: CAIRN_FAKE_DEVICE, which the node inherits.
  void Start(const std::string& fake, std::vector<std::string> extra = {}) {
    setenv("CAIRN_FAKE_DEVICE", fake.c_str(), 1);
    std::vector<std::string> args = {"--device.library",  device::fake::LibraryPath(),
                                     "--device.capacity", "4MiB",
                                     "--device.chunk",    "1MiB"};
    args.insert(args.end(), extra.begin(), extra.end());
    auto started = CacheNode::Start(args);
    unsetenv("CAIRN_FAKE_DEVICE");
    ASSERT_OK(started);
    node_ = std::move(*started);
  }
  std::string Ready() {
    const auto answer = metrics::HttpGet(node_->admin(), "/readyz", kTimeout);
    return answer.ok() ? *answer : ToString(answer.status());
  }
  // Reads blocks 0 to count - 1 in a session of its own, which leaves no lease behind.
  void ExpectBlocks(const std::string& fingerprint, int count) {
    NodeClient reader(node_->address());
    const v1::MatchResponse match = reader.Match(fingerprint, count);
    ASSERT_EQ(match.matched_blocks(), static_cast<uint32_t>(count));
    const auto blocks = reader.Fetch(match.lease_id());
    ASSERT_EQ(blocks.size(), static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
      EXPECT_EQ(blocks.at(static_cast<uint32_t>(i)), NodeClient::Payload(i)) << i;
    }
  }
  static uint64_t BlocksOnDevice(const v1::StatResponse& stat) {
    for (const auto& tier : stat.tiers()) {
      if (tier.tier() == v1::TIER_KIND_DEVICE) return tier.blocks();
    }
    return 0;
  }
  bool HasThread(const std::string& name) {
    const std::string tasks = fmt::format("/proc/{}/task", node_->process().pid());
    for (const auto& task : std::filesystem::directory_iterator(tasks)) {
      std::string comm;
      std::getline(std::ifstream(task.path() / "comm"), comm);
      if (comm == name) return true;
    }
    return false;
  }

  std::unique_ptr<CacheNode> node_;
};

TEST_F(NodeDeviceTest, BlocksThatAreReadGoToTheDeviceAndAreServedFromThere) {
  // Room for few blocks in host: those that were read are on the device alone.
  Start("seed=3", {"--host.capacity", "1MiB"});
  EXPECT_EQ(Ready(), "ready\n");
  EXPECT_TRUE(HasThread("cairn-device"));
  NodeClient client(node_->address());
  const std::string fingerprint = client.Open(NodeClient::Spec());
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(client.Store(fingerprint, i).ok());
  ExpectBlocks(fingerprint, 20);
  ASSERT_TRUE(client.WaitStat([](const v1::StatResponse& s) { return BlocksOnDevice(s) == 20; }));
  const std::string other = client.Open(NodeClient::Spec("other"));
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(client.Store(other, i).ok());
  const auto read_from_device = [](const v1::StatResponse& stat) {
    for (const auto& tier : stat.tiers()) {
      if (tier.tier() == v1::TIER_KIND_DEVICE) return tier.read_bytes();
    }
    return uint64_t{0};
  };
  EXPECT_EQ(read_from_device(client.Stat()), 0u);
  ExpectBlocks(fingerprint, 20);
  EXPECT_GE(read_from_device(client.Stat()), 20u * 10'000);
  const auto scrape = metrics::HttpGet(node_->admin(), "/metrics", kTimeout);
  ASSERT_OK(scrape);
  EXPECT_THAT(*scrape, HasSubstr("cairn_device_up{device=\"GPU-"));
  EXPECT_THAT(*scrape, HasSubstr("cairn_tier_capacity_bytes{tier=\"device\"} 4194304\n"));
  client.Close();
  node_->process().Signal(SIGTERM);
  const auto exit = node_->process().WaitExit(std::chrono::seconds(120));
  ASSERT_OK(exit);
  EXPECT_EQ(exit->code, 0);
  EXPECT_THAT(node_->process().err(), Not(HasSubstr("fake device:")))
      << "an access that no wait orders";
}

TEST_F(NodeDeviceTest, ADeviceThatIsLostUnderWayCostsItsTierAlone) {
  Start("fail=work:7:1:lost");
  NodeClient client(node_->address());
  const std::string fingerprint = client.Open(NodeClient::Spec());
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(client.Store(fingerprint, i).ok());
  for (int round = 0; round < 3; ++round) ExpectBlocks(fingerprint, 20);
  ASSERT_TRUE(client.WaitStat([](const v1::StatResponse& s) {
    for (const auto& tier : s.tiers()) {
      if (tier.tier() == v1::TIER_KIND_DEVICE) return tier.capacity_bytes() == 0;
    }
    return false;
  }));
  ASSERT_TRUE(client.WaitStat([](const v1::StatResponse& s) { return BlocksOnDevice(s) == 0; }));
  EXPECT_THAT(Ready(), HasSubstr("ready, degraded: lost GPUs: GPU-"));
  ExpectBlocks(fingerprint, 20);
}

TEST_F(NodeDeviceTest, WithoutDriverOrLibraryTheNodeServesAndSaysSo) {
  const std::pair<std::string, std::string> cases[] = {
      {"no_driver", "no device tier: fake driver: no driver is installed"},
      {"old_driver", "no device tier: fake driver: the driver is of version 1"},
      {"devices=0", "no device tier: device.ids: the fake driver shows no device"},
  };
  for (const auto& [fake, reason] : cases) {
    SCOPED_TRACE(fake);
    Start(fake);
    EXPECT_THAT(Ready(), HasSubstr("ready, degraded: " + reason));
    EXPECT_FALSE(HasThread("cairn-device"));
    const auto scrape = metrics::HttpGet(node_->admin(), "/metrics", kTimeout);
    ASSERT_OK(scrape);
    EXPECT_THAT(*scrape, HasSubstr("\ncairn_device_up 0\n"));
  }
  Start("", {"--device.library", "/nowhere/libcairn_cuda.so"});
  EXPECT_THAT(Ready(), HasSubstr("no device tier: no library of devices: /nowhere"));
  NodeClient client(node_->address());
  const std::string fingerprint = client.Open(NodeClient::Spec());
  ASSERT_TRUE(client.Store(fingerprint, 0).ok());
  ExpectBlocks(fingerprint, 1);
}

TEST_F(NodeDeviceTest, WhereNothingCanBePinnedOrExportedBlocksStillArrive) {
  Start("pinned=0,no_export", {"--host.capacity", "1MiB"});
  NodeClient client(node_->address());
  const std::string fingerprint = client.Open(NodeClient::Spec());
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(client.Store(fingerprint, i).ok());
  ExpectBlocks(fingerprint, 10);
  ASSERT_TRUE(client.WaitStat([](const v1::StatResponse& s) { return BlocksOnDevice(s) == 10; }));
  EXPECT_EQ(Ready(), "ready\n");
}

TEST_F(NodeDeviceTest, ANodeWithoutTheSettingHasNoThreadAndNoMetricOfDevices) {
  auto started = CacheNode::Start({});
  ASSERT_OK(started);
  node_ = std::move(*started);
  EXPECT_FALSE(HasThread("cairn-device"));
  const auto scrape = metrics::HttpGet(node_->admin(), "/metrics", kTimeout);
  ASSERT_OK(scrape);
  EXPECT_THAT(*scrape, Not(HasSubstr("cairn_device_")));
}

}  // namespace
}  // namespace cairn::testing
