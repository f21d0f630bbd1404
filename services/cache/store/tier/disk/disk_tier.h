#pragma once
// The disk tier: extents in large segment files that are used again and again. It finds them again
// after the process died.
//
// services/cache/store/tier/disk/README.md says where things lie, what survives, and why.
// docs/inside/formats/disk.md has the bytes.
//
// Thread-safe. RocksDB's and the kernel's types stay in the .cc files.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cairn/common/status.h"
#include "services/cache/store/tier/disk/io_time.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache {

namespace disk {
class IoBackend;
}

struct DiskTierOptions {
  std::string directory = {};  // Made if it does not exist. Only for this tier.
  // Sum of extents. The directory stays below 1.3 x this (and at least 64 MiB).
  uint64_t capacity_bytes = 0;
  // Empty: the directory's, or a new one. Letters, digits, '-', '_', '.'; at most 64.
  std::string node_id = {};
  uint32_t max_extent_bytes = 64u << 20;  // Never more than a new segment.
  size_t queue_depth = 8;  // Most reads, and most writes, at the device at once; of ranges 8 x.
  // Most reads, and most writes, that wait for their turn. RESOURCE_EXHAUSTED for more.
  size_t queue_capacity = 1024;
  // O_DIRECT. Falls back to buffered I/O if the file system refuses it.
  bool direct_io = true;
  // "auto", "io_uring", "aio" or "threads". If a named one does not work here, that is an error.
  // auto takes the best one that works.
  std::string io_backend = "auto";
  // No segment file is made if the file system would then have less free room than this:
  // RESOURCE_EXHAUSTED.
  uint64_t min_free_bytes = 256u << 20;
  // Deletes the contents of the directory if its format or its node id differs, instead of refusing
  // to open.
  bool wipe_on_mismatch = false;
  // A directory of another node becomes that of `node_id`, with all that it holds.
  bool take_over = false;
  // Deletes the contents of the directory if its database cannot be opened or its records cannot be
  // read. Then the tier reads the records twice when it opens.
  bool wipe_on_damage = false;
  // Bytes per second of stored blocks that are verified in the background. 0: none.
  uint64_t scrub_bytes_per_second = 0;
  // How long PutMeta and DeleteMeta wait for the device.
  std::chrono::nanoseconds meta_patience = std::chrono::seconds(10);
  // For tests: puts something between the tier and the device. Called for each backend.
  std::function<std::unique_ptr<disk::IoBackend>(std::unique_ptr<disk::IoBackend>)> wrap_io = {};
};

struct DiskTierStats {
  uint64_t segments = 0;  // Files that are there.
  uint64_t free_segments = 0;
  uint64_t segment_bytes = 0;  // The size of a new segment.
  // On the device, but lost if the process died now, because their record is not written.
  uint64_t waiting_bytes = 0;
  uint64_t corrupt_reads = 0;    // Reads that ended with DATA_LOSS.
  uint64_t corrupt_records = 0;  // Dropped by Recover, or pieces of the log that were lost.
  uint64_t trimmed_extents = 0;  // Released by Recover: a smaller capacity has no room for them.
  // Written a second time to free a segment: amplification is 1 + moved / written.
  uint64_t moved_bytes = 0;
  uint64_t scrubbed_bytes = 0;
  uint64_t scrub_failures = 0;  // Damaged extents that the scrubber or a move found.
  // Accesses to the device for callers: of extents, or of groups of them that lie side by side, and
  // the rounds that make all of them durable. From their start, which may wait for others.
  disk::IoTimeStats reads, writes, syncs;
};

class DiskTier final : public PersistentTier {
 public:
  // INVALID_ARGUMENT names the option. FAILED_PRECONDITION: the directory has another format or
  // node, or is in use. DATA_LOSS: the directory is damaged, and the message says what to do.
  static Result<std::unique_ptr<DiskTier>> Open(const DiskTierOptions& options);
  // Room in the file system, in addition to min_free_bytes, that the first write to an empty
  // directory needs.
  static uint64_t LeastRoom(uint64_t capacity_bytes);
  // Finishes queued work, closes.
  ~DiskTier() override;

  TierKind kind() const override { return TierKind::kDisk; }
  Result<Extent> Reserve(uint32_t length) override;
  void Release(const Extent& extent) override;
  // Memory that begins on a page is written without a copy, except for its last page. When the
  // callback has run with OK, the extent survives the death of the process. FAILED_PRECONDITION:
  // Recover was not called, or the extent is not reserved or was already written.
  // RESOURCE_EXHAUSTED: the queue or the disk is full. UNAVAILABLE: the device or the database does
  // not accept writes. A failed Write leaves nothing behind, and the extent stays reserved.
  void Write(const Extent& extent, std::string_view record, std::span<const std::byte> source,
             IoCallback done) override;
  void Read(const Extent& extent, std::span<std::byte> destination, IoCallback done) override;
  void ReadRange(const Extent& extent, uint64_t offset, std::span<std::byte> destination,
                 IoCallback done) override;
  bool reads_ranges() const override { return true; }
  std::span<std::byte> Map(const Extent&) override { return {}; }
  uint32_t max_extent_bytes() const override;
  TierStats GetStats() const override;

  Status Recover(const RecoverVisitor& visitor) override;
  using PersistentTier::Flush;
  Status Flush(std::chrono::nanoseconds limit, const std::function<bool()>& cancelled) override;
  Result<std::string> RecordOf(const Extent& extent) override;
  VictimGroup NextVictims() override;
  uint64_t MapBytes() const override;
  void SetDamageListener(DamageListener listener) override;
  Status PutMeta(std::string_view name, std::string_view value) override;
  Status DeleteMeta(std::string_view name) override;
  Status ListMeta(
      const std::function<void(std::string_view name, std::string_view value)>& visitor) override;

  DiskTierStats GetDiskStats() const;
  // The backend and the kind of I/O in use: "io_uring/direct", "threads/buffered".
  const std::string& io_mode() const;
  const std::string& node_id() const;
  // Bytes of memory that the database and the map of extents hold now.
  uint64_t memory_bytes() const;

 private:
  class Impl;
  explicit DiskTier(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::cache
