#include "tools/cairn/bench/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/status/matchers.h"

namespace cairn::cli::bench {
namespace {

using cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

BenchFlags Flags(const std::string& workload) {
  BenchFlags flags;
  flags.workload = workload;
  return flags;
}

TEST(BenchOptionsTest, EveryWorkloadHasDefaultsThatFit) {
  for (const std::string& name : WorkloadNames()) {
    const auto options = ResolveOptions(Flags(name));
    ASSERT_OK(options) << name;
    EXPECT_EQ(Name(options->workload), name);
    EXPECT_GE(options->blocks(), options->batch) << name;
  }
}

TEST(BenchOptionsTest, FlagsReplaceDefaults) {
  BenchFlags flags = Flags("get");
  flags.size = "64KiB";
  flags.data = "8MiB";
  flags.batch = 16;
  flags.depth = 2;
  flags.path = "grpc";
  flags.spin = "50us";
  const auto options = ResolveOptions(flags);
  ASSERT_OK(options);
  EXPECT_EQ(options->block_bytes, 65536u);
  EXPECT_EQ(options->blocks(), 128u);
  EXPECT_EQ(options->batch, 16u);
  EXPECT_EQ(options->depth, 2u);
  EXPECT_EQ(options->path, client::PathChoice::kGrpc);
  EXPECT_EQ(options->spin, std::chrono::microseconds(50));
}

TEST(BenchOptionsTest, DataIsCutToWholeBatches) {
  BenchFlags flags = Flags("get");
  flags.size = "1MiB";
  flags.data = "10MiB";
  flags.batch = 4;
  const auto options = ResolveOptions(flags);
  ASSERT_OK(options);
  EXPECT_EQ(options->blocks(), 8u);
}

TEST(BenchOptionsTest, ErrorsNameFlagValueAndExpectation) {
  EXPECT_THAT(ResolveOptions(Flags("gte")),
              StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr("'gte'"), HasSubstr("get"))));
  BenchFlags flags = Flags("get");
  flags.size = "64 apples";
  EXPECT_THAT(ResolveOptions(flags),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--size"), HasSubstr("64 apples"), HasSubstr("64KiB"))));
  flags = Flags("get");
  flags.data = "0";
  EXPECT_THAT(ResolveOptions(flags), StatusIs(StatusCode::kInvalidArgument, HasSubstr("--data")));
  flags = Flags("get");
  flags.path = "tcp";
  EXPECT_THAT(ResolveOptions(flags),
              StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr("--path"), HasSubstr("tcp"))));
  flags = Flags("get");
  flags.spin = "2s";
  EXPECT_THAT(ResolveOptions(flags),
              StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr("--spin"), HasSubstr("2s"))));
  flags = Flags("get");
  flags.size = "1MiB";
  flags.data = "2MiB";
  flags.batch = 4;
  EXPECT_THAT(ResolveOptions(flags),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("at least one batch")));
  flags = Flags("get");
  flags.clients = 4096;
  flags.depth = 1024;
  EXPECT_THAT(ResolveOptions(flags),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("--clients x --depth")));
  flags = Flags("get");
  flags.seconds = 0;
  EXPECT_THAT(ResolveOptions(flags),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("--seconds")));
}

}  // namespace
}  // namespace cairn::cli::bench
