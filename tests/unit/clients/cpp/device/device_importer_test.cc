// Chunks that are imported with a device: what the copies bring, and what failures cost.
#include "clients/cpp/src/device/device_importer.h"

#include <unistd.h>

#include <cstring>
#include <numeric>

#include "common/status/matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_device/fake_devices.h"

namespace cairn::client {
namespace {

using cairn::testing::StatusIs;
using device::fake::FakeDevices;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr uint64_t kChunk = 4 << 20;  // More than a copy moves at a time.

TimePoint In(Duration d) { return SteadyClock::Get().Now() + d; }

// Memory of the device as a node has it.
class Exported {
 public:
  explicit Exported(const std::shared_ptr<device::Device>& device) {
    memory_ = *device->Allocate(kChunk, /*exportable=*/true);
    descriptor_ = *memory_.Export();
    // The fake's memory is the host's.
    auto* const bytes = reinterpret_cast<uint8_t*>(memory_.address());
    for (uint64_t i = 0; i < kChunk; ++i) bytes[i] = static_cast<uint8_t>(i * 7 + i / 251);
  }
  ~Exported() { close(descriptor_); }
  int descriptor() const { return descriptor_; }
  bool Same(uint64_t offset, std::span<const std::byte> got) const {
    return std::memcmp(reinterpret_cast<const void*>(memory_.address() + offset), got.data(),
                       got.size()) == 0;
  }

 private:
  device::DeviceMemory memory_;
  int descriptor_ = -1;
};

TEST(DeviceImporterTest, PiecesOfAnySizeAreCopied) {
  for (const uint64_t seed : {1, 2, 3}) {
    FakeDevices fake({.seed = seed});
    const auto device = fake.Open();
    const Exported exported(device);
    const auto importer = NewDeviceImporter(fake.Open());
    ASSERT_OK(importer);
    EXPECT_EQ((*importer)->uuids(), std::vector<std::string>{device->info().uuid});
    const auto chunk = (*importer)->Import((*importer)->uuids()[0], exported.descriptor(), kChunk);
    ASSERT_OK(chunk);
    EXPECT_EQ((*chunk)->bytes(), kChunk);
    std::vector<std::byte> small(100), large(3 << 20), none;
    ASSERT_OK((*chunk)->Read(
        {{{.offset = 4099, .to = small}, {.offset = 0, .to = none}, {.offset = 1000, .to = large}}},
        In(seconds(60))));
    EXPECT_TRUE(exported.Same(4099, small));
    EXPECT_TRUE(exported.Same(1000, large));
  }
}

TEST(DeviceImporterTest, ACopyThatIsLateIsGivenUpAndTheNextOneIsRight) {
  // Slow enough for a deadline of nothing, and quick enough for a test.
  FakeDevices fake({.bytes_per_second = 200 << 20});
  const Exported exported(fake.Open());
  const auto importer = NewDeviceImporter(fake.Open());
  ASSERT_OK(importer);
  const auto chunk = (*importer)->Import((*importer)->uuids()[0], exported.descriptor(), kChunk);
  ASSERT_OK(chunk);
  std::vector<std::byte> got(1 << 20);
  EXPECT_THAT((*chunk)->Read({{{.offset = 0, .to = got}}}, In(milliseconds(0))),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("in time")));
  ASSERT_OK((*chunk)->Read({{{.offset = 4096, .to = got}}}, In(seconds(60))));
  EXPECT_TRUE(exported.Same(4096, got));
}

TEST(DeviceImporterTest, ALostDeviceIsAnErrorOfTheRead) {
  FakeDevices fake;
  const Exported exported(fake.Open());
  const auto importer = NewDeviceImporter(fake.Open());
  ASSERT_OK(importer);
  const auto chunk = (*importer)->Import((*importer)->uuids()[0], exported.descriptor(), kChunk);
  ASSERT_OK(chunk);
  fake.control().lose(0);
  std::vector<std::byte> got(64);
  EXPECT_THAT((*chunk)->Read({{{.offset = 0, .to = got}}}, In(seconds(60))),
              StatusIs(StatusCode::kUnavailable, HasSubstr("")));
}

TEST(DeviceImporterTest, WhatCannotBeImportedIsRefused) {
  {
    FakeDevices fake({.exports = false});
    EXPECT_THAT(NewDeviceImporter(fake.Open()).status(),
                StatusIs(StatusCode::kUnimplemented, HasSubstr("cannot be shared")));
  }
  FakeDevices fake;
  const auto importer = NewDeviceImporter(fake.Open());
  ASSERT_OK(importer);
  EXPECT_THAT((*importer)->Import("GPU-other", 0, kChunk).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("field 'uuid': got 'GPU-other'")));
}

}  // namespace
}  // namespace cairn::client
