#pragma once
// The records of the disk tier in RocksDB. This is the only header of the project that knows
// RocksDB. Only .cc files of this folder include it.
//
// Column families: `records` (extent id -> place, hash, record), `default` (names -> small values).
// Both are logged. The log is synced for the named values and by Sync; all of it survives the death
// of the process. After a power loss the records of the log that are whole count: each says by its
// hash whether its bytes are there, so none depends on those before it.
// docs/inside/formats/disk.md draws the keys and values.
//
// Thread-safe.

#include <rocksdb/db.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "cairn/common/status.h"
#include "services/cache/store/tier/disk/record_store.h"

namespace cairn::cache::disk {

class MetaStore final : public RecordStore {
 public:
  // DATA_LOSS: there is a database, but it cannot be opened.
  // `max_open_files`: most tables that are open at a time.
  static Result<std::unique_ptr<MetaStore>> Open(const std::string& path, bool create,
                                                 int max_open_files);
  ~MetaStore() override;

  Status Apply(std::span<const uint64_t> forget, std::span<const StoredExtent> store) override;
  Result<std::string> RecordOf(uint64_t id) override;
  Status Scan(const std::function<void(const StoredExtent&)>& visitor,
              const std::function<void(uint64_t id)>& damaged) override;
  Status Sync() override;
  // Opens the database again if nothing else helps: a log that could not be written stops it for
  // good.
  Status Resume() override;
  // Pieces of the log that could not be read when it was opened.
  uint64_t lost_pieces() const { return lost_pieces_; }

  Status PutSmall(std::string_view key, std::string_view value) override;
  Status DeleteSmall(std::string_view key) override;
  Result<std::string> GetSmall(std::string_view key) override;
  Status ListSmall(std::string_view prefix,
                   const std::function<void(std::string_view, std::string_view)>& visitor) override;

  uint64_t MemoryBytes() override;

 private:
  MetaStore(std::string path, int max_open_files)
      : path_(std::move(path)), max_open_files_(max_open_files) {}
  Status OpenDatabase(bool create);
  // Synced.
  Status WriteSmall(rocksdb::WriteBatch* batch, const char* operation);
  void CloseDatabase();

  const std::string path_;
  const int max_open_files_;
  uint64_t lost_pieces_ = 0;
  // Held shared by every use. Resume tries for it alone, and never waits: a use may hang.
  std::shared_mutex mu_;
  std::unique_ptr<rocksdb::DB> db_;  // nullptr: it could not be opened again yet.
  rocksdb::ColumnFamilyHandle* default_ = nullptr;
  rocksdb::ColumnFamilyHandle* records_ = nullptr;
};

}  // namespace cairn::cache::disk
