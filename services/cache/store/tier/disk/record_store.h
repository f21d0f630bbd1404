#pragma once
// Where the disk tier keeps what it knows of its extents: where each lies, the hash of its bytes,
// its owner's record, and small named values. No payloads. MetaStore is the real one.
//
// After a power loss the records that are whole count, whatever came before them: each says by its
// hash whether its bytes are there.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "cairn/common/status.h"
#include "services/cache/store/tier/disk/stored_extent.h"

namespace cairn::cache::disk {

// Thread-safe.
class RecordStore {
 public:
  virtual ~RecordStore() = default;

  // Writes all of it or nothing, in this order, so that after a crash there is never a new extent
  // together with those that made room for it. When it returns, the changes survive the death of
  // the process.
  virtual Status Apply(std::span<const uint64_t> forget, std::span<const StoredExtent> store) = 0;
  // NOT_FOUND.
  virtual Result<std::string> RecordOf(uint64_t id) = 0;
  // Every extent, by id. `damaged` gets the ids whose record is not whole.
  virtual Status Scan(const std::function<void(const StoredExtent&)>& visitor,
                      const std::function<void(uint64_t id)>& damaged) = 0;
  // Records that were applied before the call survive a power loss when it returns. Does not hold
  // up Apply.
  virtual Status Sync() = 0;
  // Accepts writes again after a full disk or another temporary fault.
  virtual Status Resume() = 0;

  // Survive a power loss when they return.
  virtual Status PutSmall(std::string_view key, std::string_view value) = 0;
  virtual Status DeleteSmall(std::string_view key) = 0;
  virtual Result<std::string> GetSmall(std::string_view key) = 0;  // NOT_FOUND.
  // Keys that begin with `prefix`, by key.
  virtual Status ListSmall(
      std::string_view prefix,
      const std::function<void(std::string_view, std::string_view)>& visitor) = 0;

  virtual uint64_t MemoryBytes() = 0;
};

}  // namespace cairn::cache::disk
