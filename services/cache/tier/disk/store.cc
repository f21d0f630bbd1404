#include "services/cache/tier/disk/store.h"

#include <rocksdb/compaction_filter.h>
#include <rocksdb/convenience.h>
#include <rocksdb/listener.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <limits>

#include "services/common/clock/clock.h"
#include "services/common/hash/hash.h"
#include "services/common/log/log.h"

namespace cairn::cache::disk {
namespace {

constexpr size_t kFooterBytes = 32;
constexpr size_t kRecordHeadBytes = 16;
constexpr size_t kRecordHashBytes = 8;
// A batch that grew beyond this gives its memory back.
constexpr size_t kKeepBatchBytes = 8 << 20;
constexpr std::chrono::seconds kFlushDeadline{60};

std::array<char, 8> BigEndian(uint64_t value) {
  std::array<char, 8> key;
  for (int i = 0; i < 8; ++i) key[static_cast<size_t>(i)] = static_cast<char>(value >> (56 - 8 * i));
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

template <typename T>
T Load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

uint64_t Hash(const char* data, size_t bytes) {
  return Xxh3(std::as_bytes(std::span(data, bytes)));
}

// id, XXH3 of record, XXH3 of payload, XXH3 of these three.
std::array<char, kFooterBytes> MakeFooter(uint64_t id, std::string_view record,
                                          std::span<const std::byte> payload) {
  const uint64_t fields[3] = {id, Hash(record.data(), record.size()), Xxh3(payload)};
  std::array<char, kFooterBytes> footer;
  std::memcpy(footer.data(), fields, sizeof(fields));
  const uint64_t hash = Hash(footer.data(), sizeof(fields));
  std::memcpy(footer.data() + sizeof(fields), &hash, sizeof(hash));
  return footer;
}

// sequence u64, length u32, record bytes u32, record, XXH3 of id and all of it.
std::string MakeRecord(const Store::StoredExtent& extent) {
  const auto bytes = static_cast<uint32_t>(extent.record.size());
  std::string value(8, '\0');
  std::memcpy(value.data(), &extent.id, 8);
  value.append(reinterpret_cast<const char*>(&extent.sequence), 8);
  value.append(reinterpret_cast<const char*>(&extent.length), 4);
  value.append(reinterpret_cast<const char*>(&bytes), 4);
  value.append(extent.record);
  const uint64_t hash = Hash(value.data(), value.size());
  value.append(reinterpret_cast<const char*>(&hash), 8);
  return value.substr(8);
}

bool ParseRecord(uint64_t id, const rocksdb::Slice& value, Store::StoredExtent* extent) {
  if (value.size() < kRecordHeadBytes + kRecordHashBytes) return false;
  const size_t hashed = value.size() - kRecordHashBytes;
  std::string whole(8, '\0');
  std::memcpy(whole.data(), &id, 8);
  whole.append(value.data(), hashed);
  if (Hash(whole.data(), whole.size()) != Load<uint64_t>(value.data() + hashed)) return false;
  if (Load<uint32_t>(value.data() + 12) != hashed - kRecordHeadBytes) return false;
  *extent = {id, Load<uint64_t>(value.data()), Load<uint32_t>(value.data() + 8),
             std::string_view(value.data() + kRecordHeadBytes, hashed - kRecordHeadBytes)};
  return true;
}

class LiveFilter final : public rocksdb::CompactionFilter {
 public:
  explicit LiveFilter(std::shared_ptr<const LiveValues> live) : live_(std::move(live)) {}
  const char* Name() const override { return "cairn.live"; }
  Decision FilterV2(int, const rocksdb::Slice& key, ValueType, const rocksdb::Slice&, std::string*,
                    std::string* skip_until) const override {
    const uint64_t sequence = FromBigEndian(key);
    if (live_->Lives(sequence)) return Decision::kKeep;
    // Seeks over the dead values instead of reading them.
    const auto next = BigEndian(live_->NextLiving(sequence));
    skip_until->assign(next.data(), next.size());
    return Decision::kRemoveAndSkipUntil;
  }

 private:
  const std::shared_ptr<const LiveValues> live_;
};

// RocksDB's own log, which would be files in the directory: with the assertions that Debian's build has, RocksDB's file logger aborts the
// process when the disk is full.
class Logger final : public rocksdb::Logger {
 public:
  Logger() : rocksdb::Logger(rocksdb::WARN_LEVEL) {}
  using rocksdb::Logger::Logv;
  void Logv(const rocksdb::InfoLogLevel level, const char* format, va_list arguments) override {
    if (level == rocksdb::HEADER_LEVEL) return;
    // Its warnings are ordinary events, such as a write that waits for a flush.
    const auto own = level < rocksdb::ERROR_LEVEL ? log::Level::kDebug : log::Level::kWarn;
    if (!log::Enabled(own)) return;
    char text[1024];
    (void)vsnprintf(text, sizeof(text), format, arguments);
    log::Write(own, "rocksdb", {{"text", text}});
  }
  void Logv(const char*, va_list) override {}  // Without a level: chatter.
};

}  // namespace

class FlushWatch final : public rocksdb::EventListener {
 public:
  void OnFlushCompleted(rocksdb::DB*, const rocksdb::FlushJobInfo&) override { Notify(); }
  void OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status*) override {
    {
      MutexLock lock(mu_);
      ++errors_;
    }
    changed_.NotifyAll();
  }
  uint64_t errors() const {
    MutexLock lock(mu_);
    return errors_;
  }
  void Wait(TimePoint deadline) {
    MutexLock lock(mu_);
    const uint64_t seen = flushes_ + errors_;
    changed_.WaitUntil(mu_, deadline, [this, seen]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return flushes_ + errors_ != seen; });
  }

 private:
  void Notify() {
    {
      MutexLock lock(mu_);
      ++flushes_;
    }
    changed_.NotifyAll();
  }
  mutable Mutex mu_;
  CondVar changed_;
  uint64_t flushes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t errors_ ABSL_GUARDED_BY(mu_) = 0;
};

class LiveFilterFactory final : public rocksdb::CompactionFilterFactory {
 public:
  const char* Name() const override { return "cairn.live"; }
  void Set(std::shared_ptr<const LiveValues> live) {
    MutexLock lock(mu_);
    live_ = std::move(live);
  }
  std::unique_ptr<rocksdb::CompactionFilter> CreateCompactionFilter(
      const rocksdb::CompactionFilter::Context&) override {
    MutexLock lock(mu_);
    if (!live_) return nullptr;
    return std::make_unique<LiveFilter>(live_);
  }

 private:
  Mutex mu_;
  std::shared_ptr<const LiveValues> live_ ABSL_GUARDED_BY(mu_);
};

Status FromRocksDb(const rocksdb::Status& status, const char* operation) {
  if (status.ok()) return OkStatus();
  StatusCode code = StatusCode::kUnavailable;
  if (status.IsNotFound()) code = StatusCode::kNotFound;
  if (status.IsCorruption()) code = StatusCode::kDataLoss;
  if (status.IsNoSpace()) code = StatusCode::kResourceExhausted;
  if (status.IsAborted()) code = StatusCode::kAborted;
  return Errorf(code, "disk tier: {}: {}", operation, status.ToString());
}

rocksdb::Options Store::MakeOptions(const Options& options) const {
  rocksdb::Options made;
  made.create_if_missing = options.create;
  made.create_missing_column_families = options.create;
  // Payload and record reach the disk together though neither is logged.
  made.atomic_flush = true;
  made.use_direct_reads = options.direct_io;
  made.use_direct_io_for_flush_and_compaction = options.direct_io;
  made.max_background_jobs = 2;
  made.max_open_files = -1;
  made.info_log = std::make_shared<Logger>();
  made.info_log_level = rocksdb::WARN_LEVEL;
  made.listeners.push_back(flush_watch_);
  made.max_manifest_file_size = 16 << 20;
  made.manifest_preallocation_size = 64 << 10;
  made.stats_dump_period_sec = 0;
  made.stats_persist_period_sec = 0;
  made.compression = rocksdb::kNoCompression;
  made.bottommost_compression = rocksdb::kNoCompression;
  made.write_buffer_size = 1 << 20;
  made.max_write_buffer_number = 2;
  // Also off: rewriting by age, which a compaction filter switches on.
  made.ttl = 0;
  made.periodic_compaction_seconds = 0;
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;  // The host tier is the cache.
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  made.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return made;
}

Result<std::unique_ptr<Store>> Store::Open(const Options& options) {
  std::unique_ptr<Store> store(new Store);
  store->target_file_bytes_ = options.target_file_bytes;
  store->filter_ = std::make_shared<LiveFilterFactory>();
  store->flush_watch_ = std::make_shared<FlushWatch>();
  const rocksdb::Options base = store->MakeOptions(options);

  rocksdb::ColumnFamilyOptions records(base);
  records.write_buffer_size = 4 << 20;

  // Flushed files have disjoint ranges, so RocksDB moves them to level 1, the last one, by name only. Everything else is up to
  // collection.h: no compaction debt, and no write ever waits for one.
  rocksdb::ColumnFamilyOptions payloads(base);
  payloads.write_buffer_size = options.write_buffer_bytes;
  payloads.num_levels = 2;
  payloads.level0_file_num_compaction_trigger = 1;
  payloads.level0_slowdown_writes_trigger = std::numeric_limits<int>::max();
  payloads.level0_stop_writes_trigger = std::numeric_limits<int>::max();
  payloads.soft_pending_compaction_bytes_limit = 0;
  payloads.hard_pending_compaction_bytes_limit = 0;
  payloads.max_bytes_for_level_base = uint64_t{1} << 50;
  payloads.target_file_size_base = options.target_file_bytes;
  payloads.compaction_filter_factory = store->filter_;

  const std::vector<rocksdb::ColumnFamilyDescriptor> families = {
      {rocksdb::kDefaultColumnFamilyName, rocksdb::ColumnFamilyOptions(base)},
      {"records", records},
      {"payloads", payloads}};
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status =
      rocksdb::DB::Open(rocksdb::DBOptions(base), options.path, families, &handles, &db);
  if (!status.ok()) {
    if (status.IsNoSpace()) return FromRocksDb(status, "open");
    return Errorf(StatusCode::kDataLoss, "{}", status.ToString());
  }
  store->db_.reset(db);
  store->default_ = handles[0];
  store->records_ = handles[1];
  store->payloads_ = handles[2];
  return store;
}

Store::~Store() {
  if (!db_) return;
  for (auto* handle : {default_, records_, payloads_}) db_->DestroyColumnFamilyHandle(handle);
  (void)db_->Close();
}

Status Store::Write(const StoredExtent& extent, std::span<const std::byte> payload,
                    std::span<const uint64_t> forget) {
  const auto footer = MakeFooter(extent.id, extent.record, payload);
  const auto sequence_key = BigEndian(extent.sequence);
  const rocksdb::Slice key = ToSlice(sequence_key);
  const rocksdb::Slice value[2] = {
      {reinterpret_cast<const char*>(payload.data()), payload.size()},
      {footer.data(), footer.size()}};
  if (batch_.Data().capacity() > kKeepBatchBytes) batch_ = rocksdb::WriteBatch();
  batch_.Clear();
  rocksdb::Status status = batch_.Put(payloads_, rocksdb::SliceParts(&key, 1), {value, 2});
  if (status.ok()) status = batch_.Put(records_, ToSlice(BigEndian(extent.id)), MakeRecord(extent));
  for (size_t i = 0; status.ok() && i < forget.size(); ++i) {
    status = batch_.Delete(records_, ToSlice(BigEndian(forget[i])));
  }
  rocksdb::WriteOptions unlogged;
  unlogged.disableWAL = true;
  if (status.ok()) status = db_->Write(unlogged, &batch_);
  return FromRocksDb(status, "write");
}

Status Store::Forget(std::span<const uint64_t> ids) {
  if (ids.empty()) return OkStatus();
  rocksdb::WriteBatch batch;
  for (uint64_t id : ids) {
    if (const auto status = batch.Delete(records_, ToSlice(BigEndian(id))); !status.ok()) {
      return FromRocksDb(status, "release");
    }
  }
  rocksdb::WriteOptions unlogged;
  unlogged.disableWAL = true;
  return FromRocksDb(db_->Write(unlogged, &batch), "release");
}

Status Store::Read(uint64_t id, uint64_t sequence, std::span<std::byte> destination) {
  rocksdb::PinnableSlice value;
  const rocksdb::Status status =
      db_->Get(rocksdb::ReadOptions(), payloads_, ToSlice(BigEndian(sequence)), &value);
  if (!status.ok()) return FromRocksDb(status, "read");
  if (value.size() != destination.size() + kFooterBytes) {
    return Errorf(StatusCode::kDataLoss, "disk tier: extent {}: got {} bytes, expected {}", id,
                  value.size(), destination.size() + kFooterBytes);
  }
  const char* footer = value.data() + destination.size();
  if (Hash(footer, 24) != Load<uint64_t>(footer + 24) || Load<uint64_t>(footer) != id ||
      Hash(value.data(), destination.size()) != Load<uint64_t>(footer + 16)) {
    return Errorf(StatusCode::kDataLoss, "disk tier: extent {}: hash is wrong", id);
  }
  std::memcpy(destination.data(), value.data(), destination.size());
  return OkStatus();
}

Status Store::Scan(const std::function<void(const StoredExtent&)>& visitor,
                   const std::function<void(uint64_t id)>& damaged) {
  rocksdb::ReadOptions options;
  options.readahead_size = 2 << 20;
  std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(options, records_));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    const uint64_t id = FromBigEndian(it->key());
    StoredExtent extent;
    if (it->key().size() == 8 && ParseRecord(id, it->value(), &extent)) {
      visitor(extent);
    } else {
      damaged(id);
    }
  }
  return FromRocksDb(it->status(), "scan of records");
}

Status Store::Flush() {
  const uint64_t errors = flush_watch_->errors();
  CAIRN_RETURN_IF_ERROR(FromRocksDb(db_->Flush(rocksdb::FlushOptions(), {default_, records_, payloads_}), "flush"));
  // RocksDB 7.8 remembers a failed attempt to recover from a full disk, and from then on no Flush waits for its own end: it returns OK with
  // everything still in memory (DBImpl::WaitForFlushMemTables breaks on GetRecoveryError).
  const TimePoint deadline = SteadyClock::Get().Now() + kFlushDeadline;
  while (HasUnflushedMemory()) {
    if (flush_watch_->errors() != errors) return Errorf(StatusCode::kUnavailable, "disk tier: flush: failed in the background");
    const TimePoint now = SteadyClock::Get().Now();
    if (now >= deadline) return Errorf(StatusCode::kUnavailable, "disk tier: flush: not finished after {} s",
                                        kFlushDeadline.count());
    // A flush may end between the look and the wait.
    flush_watch_->Wait(std::min(deadline, now + std::chrono::milliseconds(20)));
  }
  return OkStatus();
}

bool Store::HasUnflushedMemory() const {
  for (auto* family : {default_, records_, payloads_}) {
    uint64_t waiting = 0;
    db_->GetIntProperty(family, rocksdb::DB::Properties::kNumImmutableMemTable, &waiting);
    if (waiting > 0) return true;
  }
  return false;
}

Status Store::Resume() { return FromRocksDb(db_->Resume(), "resume"); }

Status Store::PutSmall(std::string_view key, std::string_view value) {
  rocksdb::WriteOptions durable;
  durable.sync = true;
  return FromRocksDb(db_->Put(durable, default_, ToSlice(key), ToSlice(value)), "put of meta");
}

Status Store::DeleteSmall(std::string_view key) {
  rocksdb::WriteOptions durable;
  durable.sync = true;
  return FromRocksDb(db_->Delete(durable, default_, ToSlice(key)), "delete of meta");
}

Result<std::string> Store::GetSmall(std::string_view key) {
  std::string value;
  const auto status = db_->Get(rocksdb::ReadOptions(), default_, ToSlice(key), &value);
  if (!status.ok()) return FromRocksDb(status, "get of meta");
  return value;
}

Status Store::ListSmall(std::string_view prefix,
                        const std::function<void(std::string_view, std::string_view)>& visitor) {
  std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions(), default_));
  for (it->Seek(ToSlice(prefix)); it->Valid() && it->key().starts_with(ToSlice(prefix)); it->Next()) {
    visitor(ToView(it->key()), ToView(it->value()));
  }
  return FromRocksDb(it->status(), "list of meta");
}

uint64_t Store::LastSequence() {
  std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions(), payloads_));
  it->SeekToLast();
  uint64_t last = it->Valid() ? FromBigEndian(it->key()) : 0;
  // The last value may be unreadable, its file's range is not.
  for (const ValueFile& file : ValueFiles()) last = std::max(last, file.last);
  return last;
}

std::vector<ValueFile> Store::ValueFiles() {
  rocksdb::ColumnFamilyMetaData meta;
  db_->GetColumnFamilyMetaData(payloads_, &meta);
  std::vector<ValueFile> files;
  for (const auto& level : meta.levels) {
    for (const auto& file : level.files) {
      files.push_back({file.name, level.level, FromBigEndian(file.smallestkey),
                       FromBigEndian(file.largestkey), file.size, file.being_compacted});
    }
  }
  return files;
}

uint64_t Store::ValueFileBytes() {
  uint64_t bytes = 0;
  // Includes files that a reader still holds.
  db_->GetIntProperty(payloads_, rocksdb::DB::Properties::kTotalSstFilesSize, &bytes);
  return bytes;
}

uint64_t Store::MemoryBytes() {
  uint64_t sum = 0;
  for (auto* family : {default_, records_, payloads_}) {
    for (const auto& property : {rocksdb::DB::Properties::kSizeAllMemTables,
                                 rocksdb::DB::Properties::kEstimateTableReadersMem}) {
      uint64_t bytes = 0;
      if (db_->GetIntProperty(family, property, &bytes)) sum += bytes;
    }
  }
  return sum;
}

Status Store::Drop(std::span<const std::pair<uint64_t, uint64_t>> ranges) {
  std::vector<std::array<char, 8>> keys;
  keys.reserve(2 * ranges.size());
  for (const auto& [first, last] : ranges) {
    keys.push_back(BigEndian(first));
    keys.push_back(BigEndian(last));
  }
  std::vector<rocksdb::Slice> ends;
  for (const auto& key : keys) ends.push_back(ToSlice(key));
  std::vector<rocksdb::RangePtr> pointers;
  for (size_t i = 0; i < ends.size(); i += 2) pointers.emplace_back(&ends[i], &ends[i + 1]);
  return FromRocksDb(
      rocksdb::DeleteFilesInRanges(db_.get(), payloads_, pointers.data(), pointers.size()),
      "drop of files");
}

Status Store::Rewrite(const std::vector<std::string>& files, std::shared_ptr<const LiveValues> live,
                      uint64_t* written_bytes) {
  filter_->Set(std::move(live));
  rocksdb::CompactionOptions options;
  options.compression = rocksdb::kNoCompression;
  options.output_file_size_limit = target_file_bytes_;
  rocksdb::CompactionJobInfo info;
  const auto status =
      db_->CompactFiles(options, payloads_, files, /*output_level=*/1, -1, nullptr, &info);
  // Compactions that RocksDB starts by itself have nothing to leave out.
  filter_->Set(nullptr);
  *written_bytes += info.stats.total_output_bytes;
  return FromRocksDb(status, "rewrite of files");
}

}  // namespace cairn::cache::disk
