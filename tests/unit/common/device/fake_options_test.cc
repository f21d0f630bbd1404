#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_device/options.h"

namespace cairn::device::fake {
namespace {

TEST(FakeOptionsTest, WordsSetOptions) {
  const ParsedOptions parsed = ParseOptions(
      "seed=7,devices=2,memory=268435456,at_once,no_export,kernels=/lib/k.so,fail=copy:3:1:lost");
  EXPECT_EQ(parsed.error, "");
  EXPECT_EQ(parsed.options.seed, 7u);
  EXPECT_EQ(parsed.options.devices, 2u);
  EXPECT_EQ(parsed.options.memory_bytes, 256u << 20);
  EXPECT_FALSE(parsed.options.late);
  EXPECT_FALSE(parsed.options.exports);
  EXPECT_EQ(parsed.kernels, "/lib/k.so");
  ASSERT_EQ(parsed.failures.size(), 1u);
  EXPECT_EQ(parsed.failures[0].operation, "copy");
  EXPECT_EQ(parsed.failures[0].after, 3u);
  EXPECT_EQ(parsed.failures[0].code, Code::kLost);
  EXPECT_EQ(ParseOptions("").error, "");
}

TEST(FakeOptionsTest, WordsThatAreNotUnderstoodAreNamed) {
  for (const char* wrong : {"sed=1", "seed", "seed=", "seed=x", "seed=7x", "seed=-1",
                            "devices=5000000000", "at_once=1", "kernels=", "fail=copy:3:1",
                            "fail=copy:x:1:lost", "fail=copy:3::lost", "fail=copy:3:1:gone"}) {
    EXPECT_EQ(ParseOptions(std::string("memory=65536,") + wrong).error, wrong);
  }
}

}  // namespace
}  // namespace cairn::device::fake
