#pragma once
// A directory that one command at a time works in.

#include <memory>
#include <string>

#include "cairn/common/status.h"

namespace cairn::cli {

// Held until it is destroyed, or the process ends. Thread-safe.
class DirectoryLock {
 public:
  // Its file, in the directory. Whoever holds the lock may remove it with the directory.
  static constexpr char kFile[] = ".lock";

  // `who` may hold it, for messages: "another demo". The directory must exist. FAILED_PRECONDITION:
  // another process holds it, or its file cannot be written. REQUIRES: this process does not hold
  // it.
  static Result<std::unique_ptr<DirectoryLock>> Take(const std::string& directory,
                                                     const std::string& who);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  explicit DirectoryLock(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace cairn::cli
