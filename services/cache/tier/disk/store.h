#pragma once
// What the disk tier keeps in RocksDB. The only header of the project that knows RocksDB; included by this folder's .cc files alone.
//
// Column families: `payloads` (sequence number -> payload and footer), `records` (extent id -> sequence number, length, record),
// `default` (names -> small values, with a log). docs/formats/disk.md draws the keys and values.
//
// Thread-safe, but for Write: one writer at a time, so that sequence numbers reach the database in order.

#include <rocksdb/db.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "services/cache/tier/disk/collection.h"
#include "services/common/concurrency/mutex.h"
#include "services/common/status/status.h"

namespace cairn::cache::disk {

Status FromRocksDb(const rocksdb::Status& status, const char* operation);

// Wakes those who wait for the end of a flush.
class FlushWatch;
// Hands the values that live to compactions, which leave out the others.
class LiveFilterFactory;

class Store {
 public:
  struct Options {
    std::string path;
    bool create = false;
    bool direct_io = true;
    uint64_t write_buffer_bytes = 0;
    uint64_t target_file_bytes = 0;
  };
  struct StoredExtent {
    uint64_t id = 0;
    uint64_t sequence = 0;
    uint32_t length = 0;
    std::string_view record;
  };

  // DATA_LOSS when what is there cannot be opened.
  static Result<std::unique_ptr<Store>> Open(const Options& options);
  ~Store();

  // All of it or nothing: the extent, and the records to forget.
  Status Write(const StoredExtent& extent, std::span<const std::byte> payload,
               std::span<const uint64_t> forget);
  Status Forget(std::span<const uint64_t> ids);
  // Verified. NOT_FOUND, DATA_LOSS.
  Status Read(uint64_t id, uint64_t sequence, std::span<std::byte> destination);
  // Every record, by id. `damaged` gets the ids whose record is not whole.
  Status Scan(const std::function<void(const StoredExtent&)>& visitor,
              const std::function<void(uint64_t id)>& damaged);
  // Everything written before is on disk after. UNAVAILABLE when that takes too long.
  Status Flush();
  // After a full disk or another passing fault: accepts writes again.
  Status Resume();

  Status PutSmall(std::string_view key, std::string_view value);
  Status DeleteSmall(std::string_view key);
  Result<std::string> GetSmall(std::string_view key);  // NOT_FOUND.
  // Keys that begin with `prefix`, by key.
  Status ListSmall(std::string_view prefix,
                   const std::function<void(std::string_view, std::string_view)>& visitor);

  // The largest sequence number of stored values, 0 when there is none.
  uint64_t LastSequence();
  std::vector<ValueFile> ValueFiles();
  uint64_t ValueFileBytes();
  uint64_t MemoryBytes();
  Status Drop(std::span<const std::pair<uint64_t, uint64_t>> ranges);
  // Leaves out what does not live. `written_bytes` grows by the bytes of the new files.
  Status Rewrite(const std::vector<std::string>& files, std::shared_ptr<const LiveValues> live,
                 uint64_t* written_bytes);

 private:
  Store() = default;
  rocksdb::Options MakeOptions(const Options& options) const;

  uint64_t target_file_bytes_ = 0;
  // Of memory that takes no more writes: what Flush writes.
  bool HasUnflushedMemory() const;

  std::shared_ptr<LiveFilterFactory> filter_;
  std::shared_ptr<FlushWatch> flush_watch_;
  std::unique_ptr<rocksdb::DB> db_;
  rocksdb::ColumnFamilyHandle* default_ = nullptr;
  rocksdb::ColumnFamilyHandle* records_ = nullptr;
  rocksdb::ColumnFamilyHandle* payloads_ = nullptr;
  rocksdb::WriteBatch batch_;  // Of Write: its memory is used again.
};

}  // namespace cairn::cache::disk
