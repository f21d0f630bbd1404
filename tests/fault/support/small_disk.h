#pragma once
// A small file system that only this process and its children see, so that a disk can be full
// without anybody noticing.

#include <cstdint>
#include <memory>
#include <string>

#include "cairn/common/status.h"

namespace cairn::fault {

class SmallDisk {
 public:
  // Mounts a tmpfs of `bytes` on `path`, an empty directory, in a mount namespace of its own.
  // PERMISSION_DENIED when the machine does not permit it. The first call must come while this
  // process has one thread.
  static Result<std::unique_ptr<SmallDisk>> Mount(const std::string& path, uint64_t bytes);
  ~SmallDisk();

  uint64_t FreeBytes() const;
  // Takes `bytes` away, or all there is; TakeAway(0) gives them back.
  Status TakeAway(uint64_t bytes);

 private:
  explicit SmallDisk(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

}  // namespace cairn::fault
