#pragma once
// The files of the segments: DIRECTORY/values/000017.seg, made once and used again and again. Their
// room is allocated when they are made, so a write into one never meets a full disk.
//
// A bounded number of them is open at a time: a directory may have more files than the process may
// have descriptors. Files that are in use stay open beyond that.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "services/cache/store/tier/disk/segment_files.h"

namespace cairn::cache::disk {

// How many descriptors the tier may keep open, by the process's limit: for value files and for the
// database. At least 8 and 16, and a part of the limit, because connections need most of it.
struct DescriptorShare {
  size_t value_files = 8;
  int database = 16;
  static DescriptorShare OfProcess();
};

// Thread-safe, as SegmentFiles says.
class ValueFiles final : public SegmentFiles {
 public:
  struct Options {
    std::string path;      // The path of the folder; made when it is not there.
    bool direct = true;    // O_DIRECT.
    size_t max_open = 64;  // Files that are open and not in use.
  };
  struct Found {
    uint32_t segment = 0;
    uint64_t bytes = 0;
  };
  // The size that a file should have, if it is known.
  using SizeOf = std::function<std::optional<uint64_t>(uint32_t segment)>;

  // Finds the existing files. If a file lost its end, the end is filled with zeros. A file of
  // unknown size has `default_bytes`, or its own if that is more.
  Result<std::vector<Found>> Open(const Options& options, const SizeOf& size_of,
                                  uint64_t default_bytes);
  Result<FileRef> Use(uint32_t segment) override;
  Status Make(uint32_t segment, uint64_t bytes) override;
  void Delete(uint32_t segment) override;
  Status Sync(uint32_t segment) override;
  Status SyncNames() override;
  // That an unprivileged process can write.
  uint64_t FreeBytes() const override;
  std::string folder() const override { return options_.path; }

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
