#include "services/cache/tier/disk/impl.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "services/common/log/log.h"

namespace cairn::cache {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kMiB = 1 << 20;
// Ids: the number of this opening, then a counter. So no id comes twice, whatever was lost.
constexpr int kEpochShift = 40;
constexpr std::string_view kEpochKey = "i/epoch";
constexpr std::string_view kMetaPrefix = "m/";
// What an extent needs on disk beyond its payload: footer, record, keys.
constexpr uint64_t kOverheadBytes = 64;
constexpr milliseconds kRetry{200};
constexpr std::chrono::seconds kRoomDeadline{10};

// `check`: reads all records and names too, so that damage to them is found while it can still be wiped.
Result<std::unique_ptr<disk::Store>> OpenStore(const disk::Store::Options& options, bool check) {
  CAIRN_ASSIGN_OR_RETURN(auto store, disk::Store::Open(options));
  if (check) {
    CAIRN_RETURN_IF_ERROR(store->ListSmall("", [](std::string_view, std::string_view) {}));
    CAIRN_RETURN_IF_ERROR(store->Scan([](const disk::Store::StoredExtent&) {}, [](uint64_t) {}));
  }
  return store;
}

// Says what to do about damage; other errors stay as they are.
Status Explain(const Status& status, const std::string& directory) {
  if (status.code() != StatusCode::kDataLoss) return status;
  return Errorf(StatusCode::kDataLoss,
                "disk.path: the database in '{}' is damaged and cannot be opened ({}); restore it, delete "
                "the directory, or let disk.wipe_on_damage delete what it holds",
                directory, Message(status));
}

std::string MetaKey(std::string_view name) { return std::string(kMetaPrefix) + std::string(name); }

}  // namespace

Result<std::unique_ptr<DiskTier::Impl>> DiskTier::Impl::Open(const DiskTierOptions& options) {
  if (options.capacity_bytes == 0) {
    return InvalidArgument("option 'capacity_bytes': got 0, expected more");
  }
  if (options.max_extent_bytes == 0 || options.max_extent_bytes > (1u << 30)) {
    return InvalidArgument("option 'max_extent_bytes': got {}, expected 1 to {}",
                           options.max_extent_bytes, 1u << 30);
  }
  if (options.read_threads == 0 || options.read_threads > 64) {
    return InvalidArgument("option 'read_threads': got {}, expected 1 to 64", options.read_threads);
  }
  if (options.queue_capacity == 0) {
    return InvalidArgument("option 'queue_capacity': got 0, expected more");
  }
  if (options.flush_after < milliseconds(1)) {
    return InvalidArgument("option 'flush_after': got {} ms, expected at least 1",
                           options.flush_after.count());
  }
  if (options.write_buffer_bytes < kMiB || options.write_buffer_bytes > 1024 * kMiB) {
    return InvalidArgument("option 'write_buffer_bytes': got {}, expected {} to {}",
                           options.write_buffer_bytes, kMiB, 1024 * kMiB);
  }
  CAIRN_ASSIGN_OR_RETURN(disk::Directory directory,
                         disk::Directory::Open({.path = options.directory,
                                                .node_id = options.node_id,
                                                .wipe_on_mismatch = options.wipe_on_mismatch}));
  std::unique_ptr<Impl> impl(new Impl(options, std::move(directory)));

  // The allowances are shares of the capacity, so that a small tier stays within its bound too.
  const uint64_t room = std::max(options.capacity_bytes, 48 * kMiB);
  const uint64_t buffer = std::clamp(room / 32, kMiB, options.write_buffer_bytes);
  impl->target_file_bytes_ = std::clamp(room / 32, 2 * kMiB, 64 * kMiB);
  impl->soft_garbage_bytes_ = room / 10;
  impl->hard_file_bytes_ = options.capacity_bytes + room / 5;

  impl->io_mode = options.direct_io && impl->directory.SupportsDirectIo() ? IoMode::kDirect
                                                                          : IoMode::kBuffered;
  disk::Store::Options store{.path = impl->directory.database_path(),
                             .create = impl->directory.is_new(),
                             .direct_io = impl->io_mode == IoMode::kDirect,
                             .write_buffer_bytes = buffer,
                             .target_file_bytes = impl->target_file_bytes_};
  auto opened = OpenStore(store, options.wipe_on_damage);
  if (!opened.ok() && opened.status().code() == StatusCode::kDataLoss && options.wipe_on_damage) {
    log::Warn("disk_tier_wiped",
              {{"directory", options.directory}, {"reason", Message(opened.status())}});
    CAIRN_RETURN_IF_ERROR(impl->directory.Wipe());
    store.create = true;
    opened = disk::Store::Open(store);
  }
  if (!opened.ok()) return Explain(opened.status(), options.directory);
  impl->store = std::move(*opened);

  uint64_t epoch = 1;
  auto stored = impl->store->GetSmall(kEpochKey);
  if (stored.ok() && stored->size() == 8) {
    std::memcpy(&epoch, stored->data(), 8);
    ++epoch;
  } else if (!stored.ok() && stored.status().code() != StatusCode::kNotFound) {
    return Explain(stored.status(), options.directory);
  }
  CAIRN_RETURN_IF_ERROR(
      impl->store->PutSmall(kEpochKey, {reinterpret_cast<const char*>(&epoch), 8}));
  if (impl->directory.is_new()) CAIRN_RETURN_IF_ERROR(impl->directory.MarkReady());
  impl->Start(epoch);
  return impl;
}

void DiskTier::Impl::Start(uint64_t epoch) {
  {
    MutexLock lock(mu_);
    next_id_ = epoch << kEpochShift;
    next_sequence_ = store->LastSequence() + 1;
  }
  file_bytes_ = store->ValueFileBytes();
  readers_ = std::make_unique<ThreadPool>(ThreadPool::Options{
      .name = "disk-read", .threads = options.read_threads, .queue_capacity = options.queue_capacity});
  writer_ = std::make_unique<ThreadPool>(ThreadPool::Options{
      .name = "disk-write", .threads = 1, .queue_capacity = options.queue_capacity});
  flusher_ = std::thread([this] { FlusherLoop(); });
  collector_ = std::thread([this] { CollectorLoop(); });
}

DiskTier::Impl::~Impl() {
  // Queued operations still call back, but wait for nothing.
  {
    MutexLock lock(mu_);
    closing_ = true;
  }
  collected_cv_.NotifyAll();
  if (readers_) readers_->Stop();
  if (writer_) writer_->Stop();
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  flusher_cv_.NotifyAll();
  collector_cv_.NotifyAll();
  if (flusher_.joinable()) flusher_.join();
  if (collector_.joinable()) collector_.join();
  if (store) {
    if (const Status status = FlushOnce(); !status.ok()) {
      log::Warn("disk_tier_last_flush_failed", {{"reason", Message(status)}});
    }
  }
}

Result<Extent> DiskTier::Impl::Reserve(uint32_t length) {
  if (length == 0 || length > options.max_extent_bytes) {
    return InvalidArgument("field 'length': got {}, expected 1 to {}", length,
                           options.max_extent_bytes);
  }
  MutexLock lock(mu_);
  const uint64_t bytes = length + kOverheadBytes;
  // After a crash the extents found may be more than the capacity holds.
  if (used_bytes_ > options.capacity_bytes || bytes > options.capacity_bytes - used_bytes_) {
    return Errorf(StatusCode::kResourceExhausted, "disk tier: no room for {} bytes ({} of {} used)",
                  bytes, used_bytes_, options.capacity_bytes);
  }
  used_bytes_ += bytes;
  const uint64_t id = next_id_++;
  entries_[id] = {.sequence = 0, .length = length, .state = State::kReserved};
  return Extent{id, length};
}

void DiskTier::Impl::Release(const Extent& extent) {
  bool garbage = false;
  {
    MutexLock lock(mu_);
    const auto it = entries_.find(extent.id);
    CAIRN_CHECK(it != entries_.end() && it->second.length == extent.length);
    CAIRN_CHECK(it->second.state != State::kWriting);
    used_bytes_ -= extent.length + kOverheadBytes;
    if (it->second.state == State::kWritten) {
      garbage = true;
      to_forget_.push_back(extent.id);
      if (!dirty_since_) dirty_since_ = Clock::now();
    }
    entries_.erase(it);
    garbage = garbage && recovered_ && !collect_wanted_ &&
              file_bytes_ > used_bytes_ + soft_garbage_bytes_;
  }
  flusher_cv_.NotifyOne();
  if (garbage) WakeCollector();
}

void DiskTier::Impl::Write(const Extent& extent, std::string_view record,
                           std::span<const std::byte> source, IoCallback done) {
  if (source.size() != extent.length) {
    return done(InvalidArgument("field 'source': got {} bytes, expected {}", source.size(),
                                extent.length));
  }
  Status known = OkStatus();
  {
    MutexLock lock(mu_);
    const auto it = entries_.find(extent.id);
    if (it == entries_.end() || it->second.length != extent.length ||
        it->second.state != State::kReserved) {
      known = Errorf(StatusCode::kFailedPrecondition,
                     "disk tier: extent {} is not reserved, or was written before", extent.id);
    } else {
      it->second.state = State::kWriting;
    }
  }
  if (!known.ok()) return done(known);

  auto shared = std::make_shared<IoCallback>(std::move(done));
  const Status posted = writer_->Post([this, extent, record, source, shared] {
    uint64_t sequence;
    {
      MutexLock lock(mu_);
      sequence = next_sequence_++;
      entries_[extent.id].sequence = sequence;
    }
    const Status status = WriteNow(extent, sequence, record, source);
    {
      MutexLock lock(mu_);
      Entry& entry = entries_[extent.id];
      if (status.ok()) {
        entry.state = State::kWritten;
        written_ += extent.length;
        if (!dirty_since_) dirty_since_ = Clock::now();
      } else {
        entry.state = State::kReserved;
        fault_ = true;
      }
    }
    if (!status.ok()) ++io_errors_;
    flusher_cv_.NotifyOne();
    (*shared)(status);
  });
  if (!posted.ok()) {
    {
      MutexLock lock(mu_);
      entries_[extent.id].state = State::kReserved;
    }
    (*shared)(posted);
  }
}

Status DiskTier::Impl::WaitForRoom(uint32_t bytes) {
  const auto fits = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return file_bytes_ + (written_ - flushed_) + bytes <= hard_file_bytes_;
  };
  const Clock::time_point deadline = Clock::now() + kRoomDeadline;
  for (;;) {
    uint64_t seen;
    {
      MutexLock lock(mu_);
      if (fits() || !recovered_) return OkStatus();
      collect_wanted_ = true;
      seen = collector_steps_;
    }
    collector_cv_.NotifyOne();
    MutexLock lock(mu_);
    const bool stepped = collected_cv_.WaitUntil(
        mu_, deadline, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return collector_steps_ > seen || closing_;
        });
    if (fits()) return OkStatus();
    if (!stepped || closing_) {
      return Errorf(StatusCode::kResourceExhausted,
                    "disk tier: files have {} bytes, at most {} are allowed; collection is behind",
                    file_bytes_.load(), hard_file_bytes_);
    }
  }
}

Status DiskTier::Impl::WriteNow(const Extent& extent, uint64_t sequence, std::string_view record,
                                std::span<const std::byte> source) {
  const uint64_t free = directory.FreeBytes();
  if (free < options.min_free_bytes) {
    return Errorf(StatusCode::kResourceExhausted,
                  "disk tier: the file system has {} free bytes, fewer than option 'min_free_bytes' "
                  "({})",
                  free, options.min_free_bytes);
  }
  CAIRN_RETURN_IF_ERROR(WaitForRoom(extent.length));
  MutexLock batch(batch_mu_);
  std::vector<uint64_t> forget;
  {
    MutexLock lock(mu_);
    forget.swap(to_forget_);
  }
  // In one batch: a crash never finds the new extent together with those that made room for it.
  Status status = store->Write({.id = extent.id,
                                .sequence = sequence,
                                .length = extent.length,
                                .record = record},
                               source, forget);
  if (!status.ok()) {
    MutexLock lock(mu_);
    to_forget_.insert(to_forget_.end(), forget.begin(), forget.end());
  }
  return status;
}

void DiskTier::Impl::Read(const Extent& extent, std::span<std::byte> destination, IoCallback done) {
  if (destination.size() != extent.length) {
    return done(InvalidArgument("field 'destination': got {} bytes, expected {}",
                                destination.size(), extent.length));
  }
  uint64_t sequence = 0;
  {
    MutexLock lock(mu_);
    const auto it = entries_.find(extent.id);
    if (it != entries_.end() && it->second.state == State::kWritten &&
        it->second.length == extent.length) {
      sequence = it->second.sequence;
    }
  }
  if (sequence == 0) {
    return done(Errorf(StatusCode::kNotFound, "disk tier: extent {} holds nothing", extent.id));
  }
  auto shared = std::make_shared<IoCallback>(std::move(done));
  const Status posted = readers_->Post([this, extent, sequence, destination, shared] {
    (*shared)(ReadNow(extent, sequence, destination));
  });
  if (!posted.ok()) (*shared)(posted);
}

Status DiskTier::Impl::ReadNow(const Extent& extent, uint64_t sequence,
                               std::span<std::byte> destination) {
  Status status = store->Read(extent.id, sequence, destination);
  if (status.ok()) {
    read_bytes_ += destination.size();
    return status;
  }
  if (status.code() == StatusCode::kNotFound) {
    ++missing_reads_;
  } else {
    ++io_errors_;
    if (status.code() == StatusCode::kDataLoss) ++corrupt_reads_;
  }
  return status;
}

Status DiskTier::Impl::Recover(const RecoverVisitor& visitor) {
  {
    MutexLock lock(mu_);
    if (recovered_ || !entries_.empty()) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "disk tier: Recover comes once, before any other call");
    }
  }
  std::vector<uint64_t> unwanted;
  uint64_t last_sequence = 0;
  const Status status = store->Scan(
      [&](const disk::Store::StoredExtent& found) {
        last_sequence = std::max(last_sequence, found.sequence);
        if (!visitor(Extent{found.id, found.length}, found.record)) {
          unwanted.push_back(found.id);
          return;
        }
        MutexLock lock(mu_);
        entries_[found.id] = {
            .sequence = found.sequence, .length = found.length, .state = State::kWritten};
        used_bytes_ += found.length + kOverheadBytes;
      },
      [&](uint64_t id) {
        ++corrupt_records_;
        unwanted.push_back(id);
      });
  // Without all records nothing may be collected: what was not seen would count as dead.
  if (!status.ok()) return Explain(status, options.directory);
  {
    MutexLock lock(mu_);
    next_sequence_ = std::max(next_sequence_, last_sequence + 1);
    if (!unwanted.empty()) {
      to_forget_.insert(to_forget_.end(), unwanted.begin(), unwanted.end());
      if (!dirty_since_) dirty_since_ = Clock::now();
    }
    recovered_ = true;
  }
  WakeFlusher();
  WakeCollector();
  return OkStatus();
}

Status DiskTier::Impl::Flush() { return FlushOnce(); }

Status DiskTier::Impl::FlushOnce() {
  MutexLock one_at_a_time(flush_mu_);
  std::vector<uint64_t> forget;
  std::optional<Clock::time_point> dirty;
  uint64_t mark;
  {
    MutexLock lock(mu_);
    if (!dirty_since_ && to_forget_.empty()) return OkStatus();
    forget.swap(to_forget_);
    dirty = std::exchange(dirty_since_, std::nullopt);
    mark = written_;
  }
  const Status forgotten = store->Forget(forget);
  const Status status = forgotten.ok() ? store->Flush() : forgotten;
  const uint64_t file_bytes = store->ValueFileBytes();
  MutexLock lock(mu_);
  if (!forgotten.ok()) to_forget_.insert(to_forget_.end(), forget.begin(), forget.end());
  if (!status.ok()) {
    // Never to nothing: a write may have come meanwhile, and what was forgotten waits in memory too.
    dirty_since_ = dirty.value_or(dirty_since_.value_or(Clock::now()));
    fault_ = true;
    ++io_errors_;
    return status;
  }
  // In this order, so that a sum of both never misses bytes.
  file_bytes_ = file_bytes;
  flushed_ = std::max(flushed_, mark);
  ++flushes_;
  return OkStatus();
}

void DiskTier::Impl::WakeFlusher() { flusher_cv_.NotifyOne(); }

void DiskTier::Impl::WakeCollector() {
  {
    MutexLock lock(mu_);
    collect_wanted_ = true;
  }
  collector_cv_.NotifyOne();
}

void DiskTier::Impl::FlusherLoop() {
  pthread_setname_np(pthread_self(), "disk-flush");
  // Half of the time is left for the flush itself.
  const auto wait = options.flush_after / 2;
  Clock::time_point not_before{};  // After a failure.
  bool failing = false;
  for (;;) {
    bool resume = false;
    {
      MutexLock lock(mu_);
      for (;;) {
        if (stopping_) return;
        const Clock::time_point now = Clock::now();
        std::optional<Clock::time_point> due;
        if (dirty_since_) due = std::max(*dirty_since_ + wait, not_before);
        if (fault_) due = std::min(due.value_or(not_before), not_before);
        if (due && *due <= now) break;
        const auto changed = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return stopping_ || (!due && (dirty_since_ || fault_));
        };
        if (due) {
          flusher_cv_.WaitUntil(mu_, *due, changed);
        } else {
          flusher_cv_.Wait(mu_, changed);
        }
      }
      resume = std::exchange(fault_, false);
    }
    // Nothing is gained while there is no room.
    if (resume && directory.FreeBytes() >= options.min_free_bytes) {
      // RocksDB may be trying by itself and then refuses.
      if (!store->Resume().ok()) {
        MutexLock lock(mu_);
        fault_ = true;
      }
    }
    const Status status = FlushOnce();
    if (status.ok() == failing) {
      failing = !failing;
      if (failing) {
        log::Warn("disk_tier_flush_failed", {{"reason", Message(status)}});
      } else {
        log::Info("disk_tier_flush_works_again");
      }
    }
    not_before = status.ok() && !resume ? Clock::time_point{} : Clock::now() + kRetry;
    WakeCollector();
  }
}

std::shared_ptr<disk::LiveValues> DiskTier::Impl::SnapshotLive() {
  auto live = std::make_shared<disk::LiveValues>();
  uint64_t horizon;
  {
    MutexLock batch(batch_mu_);
    MutexLock lock(mu_);
    for (const auto& [id, entry] : entries_) {
      if (entry.sequence != 0) live->Add(entry.sequence, entry.length);
    }
    horizon = next_sequence_ - 1;
  }
  live->Seal(horizon);
  return live;
}

bool DiskTier::Impl::CollectOnce() {
  // What is released at this moment ...
  const auto live = SnapshotLive();
  const disk::CollectionPolicy policy{.allowed_garbage_bytes = soft_garbage_bytes_,
                                      .target_file_bytes = target_file_bytes_};
  if (disk::PlanCollection(store->ValueFiles(), *live, policy).empty()) return false;
  // ... is forgotten on disk before its bytes go: no crash brings back a record without a payload.
  if (!FlushOnce().ok()) return false;
  const disk::CollectionPlan plan = disk::PlanCollection(store->ValueFiles(), *live, policy);
  Status status = OkStatus();
  if (!plan.drop.empty()) status = store->Drop(plan.drop);
  if (status.ok() && !plan.rewrite.empty()) {
    uint64_t written = 0;
    status = store->Rewrite(plan.rewrite, live, &written);
    gc_written_bytes_ += written;
  }
  if (!status.ok()) {
    // RocksDB may be moving a file meanwhile: not worth a word.
    if (status.code() != StatusCode::kAborted) {
      ++io_errors_;
      log::Warn("disk_tier_collection_failed", {{"reason", Message(status)}});
    }
    return false;
  }
  ++gc_runs_;
  return !plan.empty();
}

void DiskTier::Impl::CollectorLoop() {
  pthread_setname_np(pthread_self(), "disk-collect");
  bool more = false;
  for (;;) {
    {
      MutexLock lock(mu_);
      if (!more) {
        collector_idle_ = true;
        collected_cv_.NotifyAll();
        collector_cv_.Wait(mu_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return stopping_ || (collect_wanted_ && recovered_);
        });
      }
      if (stopping_) {
        collected_cv_.NotifyAll();
        return;
      }
      collector_idle_ = false;
      collect_wanted_ = false;
    }
    more = CollectOnce();
    file_bytes_ = store->ValueFileBytes();
    MutexLock lock(mu_);
    ++collector_steps_;
    collected_cv_.NotifyAll();
  }
}

void DiskTier::Impl::WaitForCollection() {
  WakeCollector();
  MutexLock lock(mu_);
  collected_cv_.Wait(mu_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return stopping_ || !recovered_ || (collector_idle_ && !collect_wanted_);
  });
}

Status DiskTier::Impl::PutMeta(std::string_view name, std::string_view value) {
  if (name.empty()) return InvalidArgument("field 'name': got '', expected a name");
  return store->PutSmall(MetaKey(name), value);
}

Status DiskTier::Impl::DeleteMeta(std::string_view name) {
  if (name.empty()) return InvalidArgument("field 'name': got '', expected a name");
  return store->DeleteSmall(MetaKey(name));
}

Status DiskTier::Impl::ListMeta(
    const std::function<void(std::string_view, std::string_view)>& visitor) {
  const Status status = store->ListSmall(kMetaPrefix, [&](std::string_view key, std::string_view value) {
    visitor(key.substr(kMetaPrefix.size()), value);
  });
  return Explain(status, options.directory);
}

TierStats DiskTier::Impl::GetStats() const {
  TierStats stats;
  stats.capacity_bytes = options.capacity_bytes;
  stats.read_bytes = read_bytes_;
  stats.io_errors = io_errors_;
  MutexLock lock(mu_);
  stats.used_bytes = used_bytes_;
  stats.extents = entries_.size();
  stats.written_bytes = written_;
  return stats;
}

DiskTierStats DiskTier::Impl::GetDiskStats() const {
  DiskTierStats stats;
  stats.file_bytes = file_bytes_;
  stats.corrupt_reads = corrupt_reads_;
  stats.missing_reads = missing_reads_;
  stats.corrupt_records = corrupt_records_;
  stats.flushes = flushes_;
  stats.gc_runs = gc_runs_;
  stats.gc_written_bytes = gc_written_bytes_;
  MutexLock lock(mu_);
  stats.unflushed_bytes = written_ - flushed_;
  return stats;
}

}  // namespace cairn::cache
