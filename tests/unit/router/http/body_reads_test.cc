// Bodies that are read on other threads, with an executor that the test steps.

#include "services/router/http/body_reads.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "common/status/matchers.h"
#include "services/router/http/json_fields.h"

namespace cairn::router {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kLong = 8 << 20;

class BodyReadsTest : public ::testing::Test {
 protected:
  void Post(const std::string& tenant, uint64_t bytes, const std::string& name) {
    EXPECT_OK(reads_.Post(tenant, bytes, [this, name] { read_.push_back(name); }));
  }

  ManualExecutor executor_;
  BodyReads reads_{{}, &executor_, &SteadyClock::Get()};
  std::vector<std::string> read_;
};

TEST_F(BodyReadsTest, AShortOneIsReadAtOnce) {
  Post("a", kLong, "long");
  Post("a", BodyReads::kShort, "short");
  EXPECT_THAT(read_, ElementsAre("short"));
  executor_.RunAll();
  EXPECT_THAT(read_, ElementsAre("short", "long"));
}

TEST_F(BodyReadsTest, NoTenantWaitsForAllOfAnother) {
  for (int i = 0; i < 6; ++i) Post("a", kLong, "a");
  executor_.RunOne();
  Post("b", 1 << 20, "b");
  executor_.RunOne();
  executor_.RunOne();
  EXPECT_THAT(read_, ElementsAre("a", "b", "a"));
}

TEST_F(BodyReadsTest, OfOneTenantTheShortestGoesFirst) {
  Post("a", kLong, "long");
  Post("a", kLong / 8, "shorter");
  executor_.RunAll();
  EXPECT_THAT(read_, ElementsAre("shorter", "long"));
}

TEST_F(BodyReadsTest, WhatIsReadCountsWhatItsTreeMayTake) {
  uint64_t during = 0;
  EXPECT_OK(reads_.Post("a", kLong, [&] { during = reads_.used_bytes(); }));
  EXPECT_EQ(reads_.used_bytes(), 0u);
  executor_.RunAll();
  EXPECT_EQ(during, BodyReads::MostBytes(kLong));
  EXPECT_EQ(reads_.used_bytes(), 0u);
}

}  // namespace
}  // namespace cairn::router
