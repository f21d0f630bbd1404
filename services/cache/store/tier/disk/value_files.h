#pragma once
// The files of the segments: DIRECTORY/values/000017.seg, made once and used again and again. Their
// room is allocated when they are made, so a write into one never meets a full disk.
//
// A bounded number of them is open at a time: a directory may have more files than the process may
// have descriptors. Files that are in use stay open beyond that.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"

namespace cairn::cache::disk {

// How many descriptors the tier may keep open, by the process's limit: for value files and for the
// database. At least 8 and 16, and a part of the limit, because connections need most of it.
struct DescriptorShare {
  size_t value_files = 8;
  int database = 16;
  static DescriptorShare OfProcess();
};

// An open file. Closes with its last user.
class OpenFile {
 public:
  explicit OpenFile(int fd) : fd_(fd) {}
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};
using FileRef = std::shared_ptr<const OpenFile>;

// Thread-safe. Make and Delete of a segment must not overlap with its use.
class ValueFiles {
 public:
  struct Options {
    std::string path;      // Of the folder; made when it is not there.
    bool direct = true;    // O_DIRECT.
    size_t max_open = 64;  // Files that are open and not in use.
  };
  struct Found {
    uint32_t segment = 0;
    uint64_t bytes = 0;
  };
  // The size that a file should have, if it is known.
  using SizeOf = std::function<std::optional<uint64_t>(uint32_t segment)>;

  ValueFiles() = default;
  ValueFiles(const ValueFiles&) = delete;

  // Finds the existing files. If a file lost its end, the end is filled with zeros. A file of
  // unknown size has `default_bytes`, or its own if that is more.
  Result<std::vector<Found>> Open(const Options& options, const SizeOf& size_of,
                                  uint64_t default_bytes);
  // Opens the file if it is not open. UNAVAILABLE: it cannot be opened.
  Result<FileRef> Use(uint32_t segment);
  // RESOURCE_EXHAUSTED: the disk has no room for it. Then nothing is left behind.
  Status Make(uint32_t segment, uint64_t bytes);
  void Delete(uint32_t segment);
  // What was written to it survives a power loss when it returns. OK if it was deleted.
  Status Sync(uint32_t segment);
  // The same for which files there are.
  Status SyncNames();

 private:
  struct Slot {
    FileRef file;
    uint64_t last_use = 0;
  };
  std::string PathOf(uint32_t segment) const;
  Status Allocate(int fd, uint32_t segment, uint64_t bytes) const;
  void Keep(uint32_t segment, FileRef file) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Options options_;  // Constant after Open.
  Mutex mu_;
  absl::flat_hash_map<uint32_t, Slot> open_ ABSL_GUARDED_BY(mu_);
  uint64_t uses_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::cache::disk
