#pragma once
// The fake devices of a test: loads the library, resets it, and fails the test if something was not
// given back, or if the library reports what the test does not expect.
//
//   FakeDevices fake({.seed = 7});
//   auto device = fake.driver()->Open(0);
//
// One at a time in a process. Thread-compatible.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "common/device/device.h"
#include "tests/support/fake_device/control.h"

namespace cairn::device::fake {

// build/*/bin/libcairn_fake_device.so, from the place of the running test.
inline std::string LibraryPath() {
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  return (self.parent_path().parent_path() / "bin" / "libcairn_fake_device.so").string();
}

class FakeDevices {
 public:
  explicit FakeDevices(const FakeOptions& options = {}) {
    void* const library = dlopen(LibraryPath().c_str(), RTLD_NOW | RTLD_LOCAL);
    CAIRN_CHECK(library != nullptr);
    const auto control = reinterpret_cast<GetFakeControl>(dlsym(library, kGetFakeControl));
    const auto table = reinterpret_cast<GetDriverTable>(dlsym(library, kGetDriverTable));
    CAIRN_CHECK(control != nullptr && table != nullptr);
    control_ = control(kControlVersion);
    table_ = table(kTableVersion);
    CAIRN_CHECK(control_ != nullptr && table_ != nullptr);
    control_->reset(&options);
  }
  ~FakeDevices() {
    EXPECT_EQ(TakeReports(), "");
    driver_.reset();
    EXPECT_EQ(stats().handles, 0u) << "memories, registrations, streams or events are left";
    const FakeOptions none;
    control_->reset(&none);
  }
  FakeDevices(const FakeDevices&) = delete;
  FakeDevices& operator=(const FakeDevices&) = delete;

  const DriverTable* table() const { return table_; }
  const FakeControl& control() const { return *control_; }
  // REQUIRES: the options have a driver.
  std::shared_ptr<Driver> driver() {
    if (driver_ == nullptr) {
      auto driver = Driver::Use(table_);
      CAIRN_CHECK(driver.ok());
      driver_ = *std::move(driver);
    }
    return driver_;
  }
  std::shared_ptr<Device> Open(uint32_t ordinal = 0) {
    auto device = driver()->Open(ordinal);
    CAIRN_CHECK(device.ok());
    return *std::move(device);
  }

  std::string TakeReports() {
    std::string text(64 << 10, '\0');
    control_->take_reports(text.data(), text.size());
    return text.c_str();
  }
  FakeStats stats() const {
    FakeStats stats;
    control_->stats(&stats);
    return stats;
  }
  void HostReads(const void* at, uint64_t bytes, const char* what = "the host's reading") {
    control_->host_access(what, reinterpret_cast<uint64_t>(at), bytes, false);
  }
  void HostWrites(const void* at, uint64_t bytes, const char* what = "the host's writing") {
    control_->host_access(what, reinterpret_cast<uint64_t>(at), bytes, true);
  }

 private:
  const FakeControl* control_ = nullptr;
  const DriverTable* table_ = nullptr;
  std::shared_ptr<Driver> driver_;
};

}  // namespace cairn::device::fake
