#pragma once
// The files of the segments: DIRECTORY/values/000017.seg, each of the same size, made once and used
// again and again. Their room is allocated when they are made, so a write into one never meets a
// full disk.

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::cache::disk {

// Thread-safe. Make and Delete of a segment must not overlap with its use.
class ValueFiles {
 public:
  struct Options {
    std::string path;  // Of the folder; made when it is not there.
    uint64_t segment_bytes = 0;
    uint32_t max_segments = 0;  // If more files exist, they are opened too.
    bool direct = true;         // O_DIRECT.
  };
  ValueFiles() = default;
  ~ValueFiles();
  ValueFiles(const ValueFiles&) = delete;

  // Opens the existing files, and puts their numbers into `found`. If a file lost its end, the end
  // is filled with zeros.
  Status Open(const Options& options, std::vector<uint32_t>* found);
  // RESOURCE_EXHAUSTED: the disk has no room for it. Then nothing is left behind.
  Status Make(uint32_t segment);
  void Delete(uint32_t segment);
  int fd(uint32_t segment) const { return fds_[segment].load(std::memory_order_acquire); }

 private:
  std::string PathOf(uint32_t segment) const;
  Status Allocate(int fd, uint32_t segment) const;

  Options options_;
  std::vector<std::atomic<int>> fds_;  // -1: no file.
};

}  // namespace cairn::cache::disk
