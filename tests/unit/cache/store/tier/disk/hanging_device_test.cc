// A device that stops, is slow by 1,000 times, or fails for a while: what waits for it ends with an
// error that says so, and goes on when it is back.

#include <atomic>
#include <map>

#include "tests/support/fault_device.h"
#include "tests/unit/cache/store/tier/disk/disk_fixture.h"

namespace cairn::cache::testing {
namespace {

using ::cairn::testing::DeviceMode;
using ::cairn::testing::FaultDevice;
using ::cairn::testing::StatusIs;
using conformance::Pattern;
using conformance::ReadAndWait;
using conformance::Waiter;
using conformance::WriteAndWait;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

class HangingDeviceTest : public DiskFixture {
 protected:
  // Requests by system calls, which the fault device sees.
  DiskTierOptions OnThreads() {
    DiskTierOptions options = Options();
    options.io_backend = "threads";
    options.meta_patience = seconds(60);
    return options;
  }
  FaultDevice device_{directory_.path()};
};

TEST_F(HangingDeviceTest, AFlushEndsAtItsLimit) {
  DiskTierOptions options = OnThreads();
  options.meta_patience = milliseconds(100);
  const auto tier = Open(options);
  ASSERT_NE(tier, nullptr);
  const Extent extent = Put(*tier, 1, 100000);
  device_.Set(DeviceMode::kHangs);
  EXPECT_THAT(tier->Flush(milliseconds(100), nullptr),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("the device has not synced")));
  EXPECT_THAT(tier->Flush(seconds(600), [] { return true; }),
              StatusIs(StatusCode::kCancelled, HasSubstr("gave up")));
  EXPECT_THAT(
      tier->PutMeta("name", "value"),
      StatusIs(StatusCode::kUnavailable, HasSubstr("has not written a named value in 0.1 s")));
  EXPECT_THAT(tier->DeleteMeta("name"), StatusIs(StatusCode::kUnavailable, ::testing::_));
  // Requests wait, and hold up nobody else.
  std::vector<std::byte> bytes(extent.length);
  const std::vector<std::byte> more = Pattern(2, 5000);
  const Extent other = *tier->Reserve(5000);
  Waiter read, write;
  tier->Read(extent, bytes, read.Callback());
  tier->Write(other, "2", more, write.Callback());
  EXPECT_EQ(tier->GetStats().read_bytes, 0u);
  tier->Release(*tier->Reserve(1000));

  device_.Set(DeviceMode::kNormal);
  EXPECT_OK(read.Wait());
  EXPECT_OK(write.Wait());
  EXPECT_EQ(bytes, Pattern(1, extent.length));
  // A device that works may take longer than that, too, where the machine is busy.
  Status put;
  for (int i = 0; i < 600; ++i) {
    put = tier->PutMeta("name", "value");
    if (put.ok()) break;
  }
  EXPECT_OK(put);
  EXPECT_OK(tier->Flush(seconds(60), nullptr));
}

TEST_F(HangingDeviceTest, ASlowDeviceLosesNothing) {
  std::vector<Extent> extents;
  {
    const auto tier = Open(OnThreads());
    ASSERT_NE(tier, nullptr);
    Put(*tier, 0, 1000);  // Makes the first value file.
    device_.Set(DeviceMode::kSlow);
    for (uint64_t seed = 1; seed <= 5; ++seed) extents.push_back(Put(*tier, seed, 50000));
    EXPECT_OK(tier->Flush(seconds(60), nullptr));
    for (uint64_t seed = 1; seed <= 5; ++seed) ExpectBytes(*tier, seed, extents[seed - 1]);
    device_.Set(DeviceMode::kNormal);
  }
  std::vector<Extent> found;
  const auto tier = Open(OnThreads(), &found);
  EXPECT_EQ(found.size(), 6u);
}

TEST_F(HangingDeviceTest, ANamedValueThatCannotBeWrittenIsAnErrorOfTheTier) {
  const auto tier = Open(OnThreads());
  ASSERT_NE(tier, nullptr);
  EXPECT_EQ(tier->GetStats().io_errors, 0u);
  device_.Set(DeviceMode::kFails);
  EXPECT_FALSE(tier->PutMeta("name", "value").ok());
  EXPECT_GE(tier->GetStats().io_errors, 1u);
  device_.Set(DeviceMode::kNormal);
}

TEST_F(HangingDeviceTest, BurstsOfErrorsAreSaidAndPass) {
  std::map<uint64_t, Extent> kept;
  uint64_t failed = 0;
  uint64_t flushed = 0;
  const auto tier_options = OnThreads();
  {
    const auto tier = Open(tier_options);
    ASSERT_NE(tier, nullptr);
    for (uint64_t seed = 1; seed <= 120; ++seed) {
      device_.Set(seed / 10 % 3 == 2 ? DeviceMode::kFails : DeviceMode::kNormal);
      const auto extent = tier->Reserve(20000);
      ASSERT_OK(extent);
      const Status status =
          WriteAndWait(*tier, *extent, std::to_string(seed), Pattern(seed, 20000));
      if (status.ok()) {
        kept[seed] = *extent;
      } else {
        EXPECT_EQ(status.code(), StatusCode::kUnavailable) << ToString(status);
        ++failed;
        tier->Release(*extent);
      }
      if (seed % 10 == 5 && tier->Flush(seconds(60), nullptr).ok()) flushed = seed;
    }
    device_.Set(DeviceMode::kNormal);
    EXPECT_GE(failed, 30u);
    EXPECT_GE(kept.size(), 60u) << "it did not recover from the first burst";
    EXPECT_GT(flushed, 100u);
    for (const auto& [seed, extent] : kept) ExpectBytes(*tier, seed, extent);
  }
  std::vector<Extent> found;
  const auto tier = Open(tier_options, &found);
  ASSERT_NE(tier, nullptr);
  EXPECT_EQ(found.size(), kept.size());
}

}  // namespace
}  // namespace cairn::cache::testing
