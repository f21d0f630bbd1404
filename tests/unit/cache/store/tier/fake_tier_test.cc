#include "services/cache/store/tier/testing/fake_tier.h"

#include <numeric>

#include "common/status/matchers.h"

namespace cairn::cache::testing {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::_;

class FakeTierTest : public ::testing::Test {
 protected:
  Extent Put(std::string_view record = "r") {
    const Extent extent = *tier_.Reserve(100);
    tier_.Write(extent, record, source_, [](Status s) { EXPECT_OK(s); });
    return extent;
  }
  Status Get(const Extent& extent) {
    Status result = Errorf(StatusCode::kUnknown, "not called");
    tier_.Read(extent, destination_, [&](Status s) { result = s; });
    return result;
  }
  FakeTier tier_;
  std::vector<std::byte> source_ = std::vector<std::byte>(100, std::byte{7});
  std::vector<std::byte> destination_ = std::vector<std::byte>(100);
};

TEST_F(FakeTierTest, FailsTheChosenWrites) {
  tier_.FailWrites(1, Errorf(StatusCode::kUnavailable, "no"), /*skip=*/1);
  std::vector<StatusCode> codes;
  for (int i = 0; i < 3; ++i) {
    tier_.Write(*tier_.Reserve(100), "", source_, [&](Status s) { codes.push_back(s.code()); });
  }
  EXPECT_THAT(codes,
              ::testing::ElementsAre(StatusCode::kOk, StatusCode::kUnavailable, StatusCode::kOk));
}

TEST_F(FakeTierTest, HoldsCallbacksUntilTold) {
  const Extent extent = Put();
  tier_.HoldCallbacks();
  bool called = false;
  tier_.Read(extent, destination_, [&](Status s) { called = s.ok(); });
  EXPECT_FALSE(called);
  EXPECT_EQ(tier_.held(), 1u);
  EXPECT_EQ(tier_.RunHeld(), 1u);
  EXPECT_TRUE(called);
}

TEST_F(FakeTierTest, CorruptsReads) {
  const Extent extent = Put();
  tier_.CorruptReads(1);
  EXPECT_OK(Get(extent));
  EXPECT_NE(source_, destination_);
  EXPECT_OK(Get(extent));
  EXPECT_EQ(source_, destination_);
  EXPECT_TRUE(tier_.CorruptStored(extent, 3));
  EXPECT_OK(Get(extent));
  EXPECT_NE(source_, destination_);
  tier_.LoseStored(extent);
  EXPECT_THAT(Get(extent), StatusIs(StatusCode::kNotFound, _));
}

TEST_F(FakeTierTest, CrashLosesWhatWasNotFlushed) {
  const Extent kept = Put("kept");
  ASSERT_OK(tier_.Flush());
  const Extent lost = Put("lost");
  ASSERT_OK(tier_.PutMeta("name", "value"));
  tier_.Crash();
  std::vector<std::string> records;
  ASSERT_OK(tier_.Recover([&](const Extent&, std::string_view record) {
    records.emplace_back(record);
    return true;
  }));
  EXPECT_THAT(records, ::testing::ElementsAre("kept"));
  EXPECT_OK(Get(kept));
  EXPECT_THAT(Get(lost), StatusIs(StatusCode::kNotFound, _));
  int metas = 0;
  ASSERT_OK(tier_.ListMeta([&](std::string_view, std::string_view) { ++metas; }));
  EXPECT_EQ(metas, 1);
}

}  // namespace
}  // namespace cairn::cache::testing
