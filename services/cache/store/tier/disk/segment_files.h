#pragma once
// The files that segments lie in, as the disk tier uses them. ValueFiles is the real one.

#include <cstdint>
#include <memory>
#include <string>

#include "cairn/common/status.h"

namespace cairn::cache::disk {

// An open file, for requests to an IoBackend. Stays open as long as somebody has it.
class OpenFile {
 public:
  virtual ~OpenFile() = default;
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd() const { return fd_; }

 protected:
  explicit OpenFile(int fd) : fd_(fd) {}

 private:
  const int fd_;
};
using FileRef = std::shared_ptr<const OpenFile>;

// Thread-safe. Make and Delete of a segment must not overlap with its use.
class SegmentFiles {
 public:
  virtual ~SegmentFiles() = default;
  // Opens the file if it is not open. UNAVAILABLE: it cannot be opened.
  virtual Result<FileRef> Use(uint32_t segment) = 0;
  // RESOURCE_EXHAUSTED: the disk has no room for it. Then nothing is left behind.
  virtual Status Make(uint32_t segment, uint64_t bytes) = 0;
  virtual void Delete(uint32_t segment) = 0;
  // Bytes that were written to it survive a power loss when it returns. OK if it was deleted.
  virtual Status Sync(uint32_t segment) = 0;
  // The same for which files there are.
  virtual Status SyncNames() = 0;
  // Bytes that can still be written to the file system. UINT64_MAX: unknown.
  virtual uint64_t FreeBytes() const = 0;
  // The folder of the files, for messages.
  virtual std::string folder() const = 0;
};

}  // namespace cairn::cache::disk
