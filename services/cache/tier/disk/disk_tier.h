#pragma once
// The disk tier: extents as values in RocksDB, found again after the process died.
//
// Where things lie, what survives what, and why: services/cache/tier/disk/README.md. The bytes: docs/formats/disk.md.
//
// Thread-safe. RocksDB's types stay in the .cc files.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "services/cache/tier/tier.h"
#include "services/common/status/status.h"

namespace cairn::cache {

struct DiskTierOptions {
  std::string directory = {};   // Made if it is not there. Holds nothing of others.
  uint64_t capacity_bytes = 0;  // Sum of extents. The directory stays below 1.3 x this (and at least 64 MiB).
  std::string node_id = {};     // Empty: the directory's, or a new one. Letters, digits, '-', '_', '.'; at most 64.
  uint32_t max_extent_bytes = 64u << 20;
  // A completed Write is durable within this time.
  std::chrono::milliseconds flush_after{1000};
  size_t read_threads = 4;
  size_t queue_capacity = 1024;            // Reads, and writes, that wait for a thread. RESOURCE_EXHAUSTED beyond.
  uint64_t write_buffer_bytes = 32u << 20;  // Three of these is what writes hold in memory. Smaller for a small capacity.
  bool direct_io = true;                   // Falls back to buffered where the file system refuses O_DIRECT.
  // Writes are refused with RESOURCE_EXHAUSTED while the file system has less room than this.
  uint64_t min_free_bytes = 256u << 20;
  // Deletes what the directory holds when its format or its node id is another, instead of refusing to open.
  bool wipe_on_mismatch = false;
  // Deletes what the directory holds when the database in it cannot be opened or its records cannot be read.
  // Costs a second look at the records when the tier opens.
  bool wipe_on_damage = false;
};

enum class IoMode : uint8_t { kDirect, kBuffered };
std::string_view Name(IoMode mode);  // "direct", "buffered".

struct DiskTierStats {
  uint64_t unflushed_bytes = 0;  // Written, and lost if the process died now.
  uint64_t file_bytes = 0;       // Of values on disk, garbage included.
  uint64_t corrupt_reads = 0;    // Reads that ended with DATA_LOSS.
  uint64_t missing_reads = 0;    // Reads of a stored extent whose bytes were gone.
  uint64_t corrupt_records = 0;  // Dropped by Recover.
  uint64_t flushes = 0;
  uint64_t gc_runs = 0;
  uint64_t gc_written_bytes = 0;  // Rewritten to free room.
};

class DiskTier final : public PersistentTier {
 public:
  // INVALID_ARGUMENT naming the option; FAILED_PRECONDITION for a directory of another format or node, or one that is in use; DATA_LOSS
  // for a damaged one, saying what to do.
  static Result<std::unique_ptr<DiskTier>> Open(const DiskTierOptions& options);
  // Finishes queued work, flushes, closes.
  ~DiskTier() override;

  TierKind kind() const override { return TierKind::kDisk; }
  Result<Extent> Reserve(uint32_t length) override;
  void Release(const Extent& extent) override;
  // FAILED_PRECONDITION for an extent that is not reserved or was written before; RESOURCE_EXHAUSTED when the queue or the disk is full;
  // UNAVAILABLE when the database does not accept writes. A failed Write leaves nothing behind; the extent stays reserved.
  void Write(const Extent& extent, std::string_view record, std::span<const std::byte> source,
             IoCallback done) override;
  void Read(const Extent& extent, std::span<std::byte> destination, IoCallback done) override;
  std::span<std::byte> Map(const Extent&) override { return {}; }
  uint32_t max_extent_bytes() const override;
  TierStats GetStats() const override;

  Status Recover(const RecoverVisitor& visitor) override;
  Status Flush() override;
  Status PutMeta(std::string_view name, std::string_view value) override;
  Status DeleteMeta(std::string_view name) override;
  Status ListMeta(
      const std::function<void(std::string_view name, std::string_view value)>& visitor) override;

  DiskTierStats GetDiskStats() const;
  uint64_t unflushed_bytes() const { return GetDiskStats().unflushed_bytes; }
  IoMode io_mode() const;
  const std::string& node_id() const;
  // Bytes of memory that the database holds now: buffers, filters, indexes.
  uint64_t memory_bytes() const;
  // Blocks until no garbage is left that the tier would collect by itself, for tests and benchmarks.
  void WaitForCollection();

 private:
  class Impl;
  explicit DiskTier(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::cache
