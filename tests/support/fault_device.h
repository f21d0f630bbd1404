#pragma once
// A device that hangs, is slow, fails, or loses what was not synced, for the files below one
// directory.
//
// The object that has fault_device.cc in it stands before the C library: a test program, or a
// program that runs with LD_PRELOAD=libcairn_fault_device.so. io_uring and aio pass it by, so the
// disk tier must use threads where a device is to hang or to fail.
//
// Power losses: each file is copied aside when it was synced. At a loss, every page that was
// written since then is there, is not, is zero, or is torn in its middle; files that were never
// synced are short, empty or away; files that were deleted may be back. Names count as durable when
// they change.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace cairn::testing {

enum class DeviceMode : uint32_t {
  kNormal = 0,
  kHangs = 1,  // Reads, writes and syncs wait until the mode changes.
  kSlow = 2,   // Each of them takes 20 ms longer: some 1,000 times as long as usual.
  kFails = 3,  // Each of them ends with EIO.
};

struct PowerLossStyle {
  // The share of the pages that were not synced, in percent; the rest is as it was before.
  uint32_t kept = 50;
  uint32_t zeroed = 5;
  uint32_t torn = 5;
  bool deleted_come_back = true;
};

// For the files of this process. One at a time. Thread-safe.
class FaultDevice {
 public:
  explicit FaultDevice(const std::string& directory);
  ~FaultDevice();
  FaultDevice(const FaultDevice&) = delete;

  void Set(DeviceMode mode);
  // Puts into `to`, which must not exist, what a loss at this moment leaves. The process goes on.
  void Leave(const std::string& to, const PowerLossStyle& style, std::mt19937_64& random);
  // Syncs of watched files so far.
  uint64_t syncs() const;
};

// For the files of another process, which runs with the environment. Not thread-safe.
class PreloadedDevice {
 public:
  // `library`: the path of libcairn_fault_device.so. Sets the environment of this process, which
  // its children have too, until the object goes.
  PreloadedDevice(const std::string& library, const std::string& directory);
  ~PreloadedDevice();
  PreloadedDevice(const PreloadedDevice&) = delete;

  void Set(DeviceMode mode);
  // Makes of the directory what a loss leaves. No process may use it.
  void LosePower(const PowerLossStyle& style, std::mt19937_64& random);

 private:
  const std::string directory_;
  const std::string control_;
};

}  // namespace cairn::testing
