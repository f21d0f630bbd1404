#include "services/cache/store/tier/disk/meta_store.h"

#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <vector>

#include "cairn/common/hash.h"
#include "common/log/log.h"

namespace cairn::cache::disk {
namespace {

std::array<char, 8> BigEndian(uint64_t value) {
  std::array<char, 8> key;
  for (int i = 0; i < 8; ++i) {
    key[static_cast<size_t>(i)] = static_cast<char>(value >> (56 - 8 * i));
  }
  return key;
}

uint64_t FromBigEndian(const rocksdb::Slice& key) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8 && i < key.size(); ++i) {
    value = value << 8 | static_cast<unsigned char>(key[i]);
  }
  return value;
}

rocksdb::Slice ToSlice(const std::array<char, 8>& key) { return {key.data(), key.size()}; }
rocksdb::Slice ToSlice(std::string_view view) { return {view.data(), view.size()}; }
std::string_view ToView(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

Status FromRocksDb(const rocksdb::Status& status, const char* operation) {
  if (status.ok()) return OkStatus();
  StatusCode code = StatusCode::kUnavailable;
  if (status.IsNotFound()) code = StatusCode::kNotFound;
  if (status.IsCorruption()) code = StatusCode::kDataLoss;
  if (status.IsNoSpace()) code = StatusCode::kResourceExhausted;
  return Errorf(code, "disk tier: {}: {}", operation, status.ToString());
}

// RocksDB's own log, which would be files in the directory: with the assertions that Debian's build
// has, RocksDB's file logger aborts the process when the disk is full.
class Logger final : public rocksdb::Logger {
 public:
  Logger() : rocksdb::Logger(rocksdb::WARN_LEVEL) {}
  using rocksdb::Logger::Logv;
  void Logv(const rocksdb::InfoLogLevel level, const char* format, va_list arguments) override {
    if (level == rocksdb::HEADER_LEVEL) return;
    // How the reader of the log says that it left something out.
    if (std::string_view(format).find("dropping %d bytes") != std::string_view::npos) ++dropped_;
    // Its warnings are ordinary events, such as a write that waits for a flush.
    const auto own = level < rocksdb::ERROR_LEVEL ? log::Level::kDebug : log::Level::kWarn;
    if (!log::Enabled(own)) return;
    char text[1024];
    (void)vsnprintf(text, sizeof(text), format, arguments);
    log::Write(own, "rocksdb", {{"text", text}});
  }
  void Logv(const char*, va_list) override {}  // Without a level: chatter.
  uint64_t dropped() const { return dropped_; }

 private:
  std::atomic<uint64_t> dropped_{0};
};

rocksdb::Options MakeOptions(bool create, int max_open_files) {
  rocksdb::Options options;
  options.create_if_missing = create;
  options.create_missing_column_families = create;
  options.max_background_jobs = 2;
  options.max_open_files = max_open_files;
  // A power loss leaves holes in what was not synced. A record behind a hole is as good as one
  // before it, and a database that does not open because of a hole is worse than any loss.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kSkipAnyCorruptedRecords;
  options.max_manifest_file_size = 16 << 20;
  options.manifest_preallocation_size = 64 << 10;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.write_buffer_size = 4 << 20;
  options.max_write_buffer_number = 3;
  options.max_total_wal_size = 16 << 20;
  options.compression = rocksdb::kNoCompression;
  options.bottommost_compression = rocksdb::kNoCompression;
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;  // Read at the start, and by the handful when something is evicted.
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

Status Closed() {
  return Errorf(StatusCode::kUnavailable, "disk tier: the database is closed after a fault");
}

}  // namespace

Result<std::unique_ptr<MetaStore>> MetaStore::Open(const std::string& path, bool create,
                                                   int max_open_files) {
  std::unique_ptr<MetaStore> store(new MetaStore(path, max_open_files));
  CAIRN_RETURN_IF_ERROR(store->OpenDatabase(create));
  return store;
}

Status MetaStore::OpenDatabase(bool create) {
  rocksdb::Options options = MakeOptions(create, max_open_files_);
  const auto logger = std::make_shared<Logger>();
  options.info_log = logger;
  const std::vector<rocksdb::ColumnFamilyDescriptor> families = {
      {rocksdb::kDefaultColumnFamilyName, rocksdb::ColumnFamilyOptions(options)},
      {"records", rocksdb::ColumnFamilyOptions(options)}};
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  const auto open = [&] {
    return rocksdb::DB::Open(rocksdb::DBOptions(options), path_, families, &handles, &db);
  };
  rocksdb::Status status = open();
  if (status.IsCorruption()) {
    // RocksDB 7.8 compares a sound record with a checksum that still has bytes of the torn one
    // which it skipped before ("Write batch content corrupted"). To stop at the tear costs nothing
    // that was flushed: a sync of the log covers all that is before it.
    options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
    status = open();
  }
  if (!status.ok()) {
    if (status.IsNoSpace()) return FromRocksDb(status, "open");
    return Errorf(StatusCode::kDataLoss, "{}", status.ToString());
  }
  db_.reset(db);
  default_ = handles[0];
  records_ = handles[1];
  lost_pieces_ = logger->dropped();
  return OkStatus();
}

void MetaStore::CloseDatabase() {
  if (!db_) return;
  for (auto* handle : {default_, records_}) db_->DestroyColumnFamilyHandle(handle);
  (void)db_->Close();
  db_.reset();
}

MetaStore::~MetaStore() { CloseDatabase(); }

Status MetaStore::Apply(std::span<const uint64_t> forget, std::span<const StoredExtent> store) {
  const std::shared_lock lock(mu_);
  if (!db_) return Closed();
  rocksdb::WriteBatch batch;
  rocksdb::Status status;
  for (size_t i = 0; status.ok() && i < forget.size(); ++i) {
    status = batch.Delete(records_, ToSlice(BigEndian(forget[i])));
  }
  for (size_t i = 0; status.ok() && i < store.size(); ++i) {
    status = batch.Put(records_, ToSlice(BigEndian(store[i].id)), EncodeExtent(store[i]));
  }
  if (status.ok()) status = db_->Write(rocksdb::WriteOptions(), &batch);
  return FromRocksDb(status, "write of records");
}

Result<std::string> MetaStore::RecordOf(uint64_t id) {
  const std::shared_lock lock(mu_);
  if (!db_) return Closed();
  rocksdb::PinnableSlice value;
  const auto status = db_->Get(rocksdb::ReadOptions(), records_, ToSlice(BigEndian(id)), &value);
  if (!status.ok()) return FromRocksDb(status, "read of a record");
  StoredExtent extent;
  if (!DecodeExtent(id, ToView(value), &extent)) {
    return Errorf(StatusCode::kDataLoss, "disk tier: record of extent {} is damaged", id);
  }
  return std::string(extent.record);
}

Status MetaStore::Scan(const std::function<void(const StoredExtent&)>& visitor,
                       const std::function<void(uint64_t id)>& damaged) {
  const std::shared_lock lock(mu_);
  if (!db_) return Closed();
  rocksdb::ReadOptions options;
  options.readahead_size = 2 << 20;
  std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(options, records_));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    const uint64_t id = FromBigEndian(it->key());
    StoredExtent extent;
    if (it->key().size() == 8 && DecodeExtent(id, ToView(it->value()), &extent)) {
      visitor(extent);
    } else {
      damaged(id);
    }
  }
  return FromRocksDb(it->status(), "scan of records");
}

Status MetaStore::Sync() {
  const std::shared_lock lock(mu_);
  if (!db_) return Closed();
  return FromRocksDb(db_->SyncWAL(), "sync of records");
}

Status MetaStore::Resume() {
  {
    const std::shared_lock lock(mu_);
    if (db_ && db_->Resume().ok()) return OkStatus();
  }
  const std::unique_lock lock(mu_, std::try_to_lock);
  if (!lock.owns_lock()) return Closed();
  CloseDatabase();
  return OpenDatabase(/*create=*/false);
}

Status MetaStore::WriteSmall(rocksdb::WriteBatch* batch, const char* operation) {
  const auto write = [&] {
    const std::shared_lock lock(mu_);
    if (!db_) return Closed();
    rocksdb::WriteOptions durable;
    durable.sync = true;
    return FromRocksDb(db_->Write(durable, batch), operation);
  };
  const Status status = write();
  // After a fault, the database refuses everything until it is asked to go on.
  return status.code() == StatusCode::kUnavailable && Resume().ok() ? write() : status;
}

Status MetaStore::PutSmall(std::string_view key, std::string_view value) {
  rocksdb::WriteBatch batch;
  // Into the default column family, whose handle changes when the database is opened again.
  CAIRN_RETURN_IF_ERROR(FromRocksDb(batch.Put(ToSlice(key), ToSlice(value)), "put of meta"));
  return WriteSmall(&batch, "put of meta");
}

Status MetaStore::DeleteSmall(std::string_view key) {
  rocksdb::WriteBatch batch;
  CAIRN_RETURN_IF_ERROR(FromRocksDb(batch.Delete(ToSlice(key)), "delete of meta"));
  return WriteSmall(&batch, "delete of meta");
}

Result<std::string> MetaStore::GetSmall(std::string_view key) {
  const std::shared_lock lock(mu_);
  if (!db_) return Closed();
  std::string value;
  const auto status = db_->Get(rocksdb::ReadOptions(), default_, ToSlice(key), &value);
  if (!status.ok()) return FromRocksDb(status, "get of meta");
  return value;
}

Status MetaStore::ListSmall(
    std::string_view prefix,
    const std::function<void(std::string_view, std::string_view)>& visitor) {
  const std::shared_lock lock(mu_);
  if (!db_) return Closed();
  std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions(), default_));
  for (it->Seek(ToSlice(prefix)); it->Valid() && it->key().starts_with(ToSlice(prefix));
       it->Next()) {
    visitor(ToView(it->key()), ToView(it->value()));
  }
  return FromRocksDb(it->status(), "list of meta");
}

uint64_t MetaStore::MemoryBytes() {
  const std::shared_lock lock(mu_);
  uint64_t sum = 0;
  if (!db_) return sum;
  for (auto* family : {default_, records_}) {
    for (const auto& property : {rocksdb::DB::Properties::kSizeAllMemTables,
                                 rocksdb::DB::Properties::kEstimateTableReadersMem}) {
      uint64_t bytes = 0;
      if (db_->GetIntProperty(family, property, &bytes)) sum += bytes;
    }
  }
  return sum;
}

}  // namespace cairn::cache::disk
