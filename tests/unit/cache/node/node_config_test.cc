#include "services/cache/node/node_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/config/config.h"

namespace cairn::cache {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// What a node says about this setting, on this machine.
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
              HasSubstr("blocks.life: got 999ms, expected 0, or 1s to 2160h"));
  EXPECT_THAT(SaidAbout("blocks.life", "2161h"), HasSubstr("blocks.life"));
  for (const char* const life : {"0", "0s", "1s", "2160h"}) {
    EXPECT_THAT(SaidAbout("blocks.life", life), Not(HasSubstr("blocks.life"))) << life;
  }
}

}  // namespace
}  // namespace cairn::cache
