#include "common/device/driver.h"

#include <cstring>
#include <filesystem>

#include "common/device/device.h"
#include "common/log/log.h"
#include "common/status/matchers.h"

namespace cairn::device {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

// A driver that finds two devices and has nothing else.
DriverTable TwoDevices() {
  DriverTable table;
  table.version = kTableVersion;
  table.bytes = sizeof(DriverTable);
  table.name = "test";
  table.initialize = [](Failure*) { return Code::kOk; };
  table.count = [](uint32_t* devices, Failure*) {
    *devices = 2;
    return Code::kOk;
  };
  table.facts = [](uint32_t device, DeviceFacts* facts, Failure*) {
    std::strcpy(facts->name, "Test");
    for (size_t i = 0; i < sizeof(facts->uuid); ++i) {
      facts->uuid[i] = static_cast<uint8_t>(i == 15 ? device : i + 1);
    }
    facts->memory_bytes = 1 << 30;
    facts->granularity = 2 << 20;
    facts->flags = kExports | kRegisters;
    return Code::kOk;
  };
  return table;
}

TEST(DeviceDriverTest, AMissingLibraryIsNamedAndTheSameIsSaidAgain) {
  const auto first = Driver::Load("/nowhere/libcairn_none.so");
  EXPECT_THAT(first, StatusIs(StatusCode::kNotFound, HasSubstr("/nowhere/libcairn_none.so")));
  EXPECT_EQ(Driver::Load("/nowhere/libcairn_none.so").status(), first.status());
}

TEST(DeviceDriverTest, AnotherLibraryIsNotTakenForADriver) {
  EXPECT_THAT(Driver::Load("libm.so.6"), StatusIs(StatusCode::kFailedPrecondition,
                                                  HasSubstr("no function 'cairn_device_driver'")));
}

// On a machine without a driver, as those of CI are, this is the whole of what the library says.
TEST(DeviceDriverTest, TheLibraryForGpusFindsADriverOrSaysThatThereIsNone) {
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  const auto library = self.parent_path().parent_path() / "bin" / kCudaLibrary;
  if (!std::filesystem::exists(library)) GTEST_SKIP() << "nvcc is not installed";
  const auto driver = Driver::Load(library.string());
  if (driver.ok()) {
    EXPECT_EQ((*driver)->name(), "cuda");
    return;
  }
  EXPECT_THAT(driver, StatusIs(StatusCode::kFailedPrecondition,
                               ::testing::AnyOf(HasSubstr("has no NVIDIA driver"),
                                                HasSubstr("the driver is for CUDA"),
                                                HasSubstr("no CUDA-capable device"))));
}

TEST(DeviceDriverTest, ATableOfAnotherVersionIsRefused) {
  static DriverTable table = TwoDevices();
  table.version = kTableVersion + 1;
  EXPECT_THAT(Driver::Use(&table),
              StatusIs(StatusCode::kFailedPrecondition,
                       HasSubstr(fmt::format("of version {}", table.version))));
}

TEST(DeviceDriverTest, ADriverThatIsTooOldIsToldInItsOwnWords) {
  static DriverTable table = TwoDevices();
  table.initialize = [](Failure* failure) {
    std::strcpy(failure->text, "driver 12.4 is there, 12.8 is needed");
    return Code::kOldDriver;
  };
  EXPECT_THAT(Driver::Use(&table), StatusIs(StatusCode::kFailedPrecondition,
                                            HasSubstr("test driver: driver 12.4 is there")));
}

TEST(DeviceDriverTest, ADeviceIsFoundByOrdinalAndByUuid) {
  static const DriverTable table = TwoDevices();
  const auto driver = Driver::Use(&table);
  ASSERT_OK(driver);
  ASSERT_EQ((*driver)->devices().size(), 2u);
  EXPECT_EQ((*driver)->devices()[1].uuid, "GPU-01020304-0506-0708-090a-0b0c0d0e0f01");
  EXPECT_EQ((*driver)->Find("1")->ordinal, 1u);
  EXPECT_EQ((*driver)->Find("GPU-01020304-0506-0708-090a-0b0c0d0e0f00")->ordinal, 0u);
  EXPECT_THAT((*driver)->Find("GPU-0102"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("several")));
  EXPECT_THAT((*driver)->Find("7"), StatusIs(StatusCode::kNotFound, HasSubstr("0 (GPU-0102")));
}

}  // namespace
}  // namespace cairn::device
