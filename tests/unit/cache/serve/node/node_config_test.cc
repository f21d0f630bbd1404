#include "services/cache/serve/node/node_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/config/config.h"
#include "common/status/matchers.h"

namespace cairn::cache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The node's error about this setting, on this machine.
std::string SaidAbout(const std::string& name, const std::string& value) {
  NodeConfig config;
  config::Schema schema("cairn-cache", "Summary.");
  NodeConfig::Register(&config, &schema);
  Status status = schema.Set(name, value, "flag");
  if (status.ok()) status = schema.RunChecks();
  return status.ok() ? "" : Message(status);
}

// The bounds of a life that a client asks for.
TEST(NodeConfigTest, ALifeOfBlocksIsNoneOrAtLeastASecond) {
  EXPECT_THAT(SaidAbout("blocks.life", "999ms"),
              HasSubstr("got '999ms', expected 0, or a time from 1s to 90d, such as 1s or 5m"));
  EXPECT_THAT(SaidAbout("blocks.life", "2161h"), HasSubstr("blocks.life"));
  for (const char* const life : {"0", "0s", "1s", "2160h", "90d"}) {
    EXPECT_THAT(SaidAbout("blocks.life", life), Not(HasSubstr("blocks.life"))) << life;
  }
}

// The same, with other settings before it.
std::string SaidAbout(const std::vector<std::pair<std::string, std::string>>& settings) {
  NodeConfig config;
  config::Schema schema("cairn-cache", "Summary.");
  NodeConfig::Register(&config, &schema);
  Status status;
  for (const auto& [name, value] : settings) {
    if (status.ok()) status = schema.Set(name, value, "flag");
  }
  if (status.ok()) status = schema.RunChecks();
  return status.ok() ? "" : Message(status);
}

TEST(NodeConfigTest, LinksNeedOtherMembersAndADeviceTier) {
  EXPECT_THAT(SaidAbout({{"link.enabled", "true"}, {"device.capacity", "64MiB"}}),
              HasSubstr("link.enabled: got true, expected false with cluster.discovery none"));
  const std::pair<std::string, std::string> cluster[] = {{"cluster.discovery", "static"},
                                                         {"cluster.members", "127.0.0.1:7400"}};
  EXPECT_THAT(SaidAbout({{"link.enabled", "true"}, cluster[0], cluster[1]}),
              HasSubstr("link.enabled: got true, expected false with device.capacity 0"));
  EXPECT_THAT(
      SaidAbout({{"link.enabled", "true"}, {"device.capacity", "64MiB"}, cluster[0], cluster[1]}),
      Not(HasSubstr("link.")));
  EXPECT_THAT(SaidAbout("link.timeout", "1ms"), HasSubstr("link.timeout"));
  EXPECT_THAT(SaidAbout("link.buffer", "1KiB"), HasSubstr("link.buffer"));
}

TEST(NodeConfigTest, AGpuIsNamedOnce) {
  EXPECT_THAT(SaidAbout("device.ids", "0,1,0"), HasSubstr("device.ids: got '0' twice"));
}

TEST(NodeConfigTest, ADiskThatIsTooFullIsToldOnRequest) {
  std::string folder = ::testing::TempDir();
  if (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  const auto told = [&](const std::string& min_free) {
    NodeConfig config;
    config::Schema schema("cairn-cache", "Summary.");
    NodeConfig::Register(&config, &schema);
    EXPECT_OK(schema.Set("disk.path", folder + "/no/such", "flag"));
    EXPECT_OK(schema.Set("disk.capacity", "16MiB", "flag"));
    EXPECT_OK(schema.Set("disk.min_free", min_free, "flag"));
    return schema.Tell();
  };
  EXPECT_THAT(told("1024TiB"),
              AllOf(HasSubstr("warning: disk.path: the file system of '" + folder),
                    HasSubstr(" free, expected at least 1025TiB"), HasSubstr("disk.min_free")));
  EXPECT_THAT(told("0"), Not(HasSubstr("warning")));
}

}  // namespace
}  // namespace cairn::cache
