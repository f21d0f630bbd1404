#pragma once
// The node's memory in this process: the segments that the node handed over, each mapped once.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>

#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "protocol/shm/protocol.h"

namespace cairn::client::local {

// One mapped segment, unmapped with its last reference: bytes that somebody still reads stay mapped
// whatever the node says. Immutable.
class ArenaSegment {
 public:
  // Maps `fd`, for writing if the entry says so. DATA_LOSS unless the file has the size that the
  // entry says and cannot shrink. Otherwise a read could end in SIGBUS.
  static Result<std::shared_ptr<const ArenaSegment>> Map(const shm::SegmentEntry& entry, int fd);
  ~ArenaSegment();
  ArenaSegment(const ArenaSegment&) = delete;
  ArenaSegment& operator=(const ArenaSegment&) = delete;

  uint64_t bytes() const { return bytes_; }
  bool writable() const { return writable_; }
  // No process that got the descriptor can write, whatever it does: the kernel holds that. Bytes in
  // any other segment may change at every moment, so they are copied before they are verified.
  bool frozen() const { return frozen_; }
  // REQUIRES: the range lies in the segment.
  std::span<const std::byte> Read(uint64_t offset, uint64_t bytes) const {
    return {base_ + offset, bytes};
  }
  // REQUIRES: writable(), the range lies in the segment.
  std::span<std::byte> Write(uint64_t offset, uint64_t bytes) const {
    return {base_ + offset, bytes};
  }

 private:
  ArenaSegment(std::byte* base, uint64_t bytes, bool writable, bool frozen)
      : base_(base), bytes_(bytes), writable_(writable), frozen_(frozen) {}

  std::byte* const base_;
  const uint64_t bytes_;
  const bool writable_;
  const bool frozen_;
};

// Thread-safe.
class ArenaMap {
 public:
  static constexpr size_t kMaxSegments = 65536;

  // DATA_LOSS for an id that is there already, or too many.
  Status Add(const shm::SegmentEntry& entry, int fd);
  void Remove(uint32_t id);
  // nullptr: unknown.
  std::shared_ptr<const ArenaSegment> Find(uint32_t id) const;

 private:
  mutable Mutex mu_;
  std::unordered_map<uint32_t, std::shared_ptr<const ArenaSegment>> segments_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::client::local
