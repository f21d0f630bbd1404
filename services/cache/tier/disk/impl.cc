#include "services/cache/tier/disk/impl.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "cairn/common/hash.h"
#include "common/log/log.h"

namespace cairn::cache {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGiB = 1 << 30;
// Ids: the number of this opening, then a counter. So no id comes twice, whatever was lost.
constexpr int kEpochShift = 40;
constexpr std::string_view kEpochKey = "i/epoch";
constexpr std::string_view kMetaPrefix = "m/";

// Small enough that evicting one costs little of what is cached, large enough that extents fill it
// well and that there are at most some hundred files.
uint64_t SegmentBytesFor(uint64_t capacity) {
  const uint64_t bytes = capacity < 4 * kGiB       ? std::clamp(capacity / 16, 2 * kMiB, 64 * kMiB)
                         : capacity <= 1024 * kGiB ? std::min(capacity / 64, 4 * kGiB)
                                                   : capacity / 256;
  return bytes / kMiB * kMiB;
}

// An eighth more than the capacity, and at least three: one open for new extents, one for moved
// ones, one to move to.
uint32_t MaxSegmentsFor(uint64_t capacity, uint64_t segment) {
  const uint64_t bytes = capacity + std::max(capacity / 8, 3 * segment);
  return static_cast<uint32_t>((bytes + segment - 1) / segment);
}

// `check`: reads all records and names too, so that damage to them is found while it can still be
// wiped.
Result<std::unique_ptr<disk::MetaStore>> OpenMetaStore(const disk::Directory& directory,
                                                       bool check) {
  CAIRN_ASSIGN_OR_RETURN(auto store,
                         disk::MetaStore::Open(directory.database_path(), directory.is_new()));
  if (check) {
    CAIRN_RETURN_IF_ERROR(store->ListSmall("", [](std::string_view, std::string_view) {}));
    CAIRN_RETURN_IF_ERROR(store->Scan([](const disk::StoredExtent&) {}, [](uint64_t) {}));
  }
  return store;
}

// Says what to do about damage; other errors stay as they are.
Status Explain(const Status& status, const std::string& directory) {
  if (status.code() != StatusCode::kDataLoss) return status;
  return Errorf(
      StatusCode::kDataLoss,
      "disk.path: the database in '{}' is damaged and cannot be opened ({}); restore it, delete "
      "the directory, or let disk.wipe_on_damage delete what it holds",
      directory, Message(status));
}

std::string MetaKey(std::string_view name) { return std::string(kMetaPrefix) + std::string(name); }

uint64_t Rounded(uint64_t bytes) { return disk::PagesFor(bytes) * disk::kPageBytes; }

Status CheckOptions(const DiskTierOptions& options) {
  if (options.capacity_bytes == 0) {
    return InvalidArgument("option 'capacity_bytes': got 0, expected more");
  }
  if (options.max_extent_bytes == 0 || options.max_extent_bytes > (1u << 30)) {
    return InvalidArgument("option 'max_extent_bytes': got {}, expected 1 to {}",
                           options.max_extent_bytes, 1u << 30);
  }
  if (options.queue_depth == 0 || options.queue_depth > 64) {
    return InvalidArgument("option 'queue_depth': got {}, expected 1 to 64", options.queue_depth);
  }
  if (options.queue_capacity == 0) {
    return InvalidArgument("option 'queue_capacity': got 0, expected more");
  }
  if (options.io_backend != "auto" && options.io_backend != "io_uring" &&
      options.io_backend != "aio" && options.io_backend != "threads") {
    return InvalidArgument("option 'io_backend': got '{}', expected auto, io_uring, aio or threads",
                           options.io_backend);
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<DiskTier::Impl>> DiskTier::Impl::Open(const DiskTierOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckOptions(options));
  CAIRN_ASSIGN_OR_RETURN(
      disk::Directory directory,
      disk::Directory::Open({.path = options.directory,
                             .node_id = options.node_id,
                             .segment_bytes = SegmentBytesFor(options.capacity_bytes),
                             .wipe_on_mismatch = options.wipe_on_mismatch}));
  disk::ValueFileMap map(directory.segment_bytes(),
                         MaxSegmentsFor(options.capacity_bytes, directory.segment_bytes()));
  std::unique_ptr<Impl> impl(new Impl(options, std::move(directory), std::move(map)));
  CAIRN_RETURN_IF_ERROR(impl->OpenStore());
  CAIRN_RETURN_IF_ERROR(impl->OpenBackends());
  CAIRN_RETURN_IF_ERROR(impl->OpenFiles());
  CAIRN_ASSIGN_OR_RETURN(const uint64_t epoch, impl->NextEpoch());
  if (impl->directory.is_new()) CAIRN_RETURN_IF_ERROR(impl->directory.MarkReady());
  {
    MutexLock lock(impl->mu_);
    impl->next_id_ = epoch << kEpochShift;
  }
  impl->records_thread_ = std::thread([self = impl.get()] { self->RecordsLoop(); });
  impl->room_thread_ = std::thread([self = impl.get()] { self->RoomLoop(); });
  if (options.scrub_bytes_per_second > 0) {
    impl->scrub_thread_ = std::thread([self = impl.get()] { self->ScrubLoop(); });
  }
  return impl;
}

Status DiskTier::Impl::OpenStore() {
  auto opened = OpenMetaStore(directory, options.wipe_on_damage);
  if (!opened.ok() && opened.status().code() == StatusCode::kDataLoss && options.wipe_on_damage) {
    log::Warn("disk_tier_wiped",
              {{"directory", options.directory}, {"reason", Message(opened.status())}});
    CAIRN_RETURN_IF_ERROR(directory.Wipe());
    opened = OpenMetaStore(directory, false);
  }
  if (!opened.ok()) return Explain(opened.status(), options.directory);
  store_ = std::move(*opened);
  return OkStatus();
}

Status DiskTier::Impl::OpenBackends() {
  const bool direct = options.direct_io && directory.SupportsDirectIo();
  disk::IoKind kind = disk::IoKind::kThreads;
  std::string reason;
  if (options.io_backend == "auto") {
    kind = disk::ProbeIoKind(&reason);
    // Native asynchronous I/O blocks in its submission without O_DIRECT.
    if (kind == disk::IoKind::kAio && !direct) kind = disk::IoKind::kThreads;
  } else if (options.io_backend == "io_uring") {
    kind = disk::IoKind::kUring;
  } else if (options.io_backend == "aio") {
    kind = disk::IoKind::kAio;
  }
  const auto make = [&](size_t depth,
                        const char* name) -> Result<std::unique_ptr<disk::IoBackend>> {
    auto backend = disk::MakeIoBackend(kind, {.depth = depth, .name = name});
    if (backend.ok() && options.wrap_io) return options.wrap_io(std::move(*backend));
    return backend;
  };
  CAIRN_ASSIGN_OR_RETURN(writer_, make(options.queue_depth, "disk-write"));
  // What was read is hashed on the backend's thread: where there are processors to spare, by more
  // than one.
  const size_t lanes = std::min<size_t>(
      options.queue_depth, std::clamp(std::thread::hardware_concurrency() / 4, 1u, 4u));
  for (size_t i = 0; i < lanes; ++i) {
    CAIRN_ASSIGN_OR_RETURN(auto backend, make(options.queue_depth / lanes, "disk-read"));
    readers_.push_back(std::move(backend));
  }
  io_mode = std::string(disk::Name(kind)) + (direct ? "/direct" : "/buffered");
  log::Info("disk_tier_io", {{"mode", io_mode},
                             {"why_not_better", reason},
                             {"segment_bytes", log::Num(directory.segment_bytes())}});
  return OkStatus();
}

Status DiskTier::Impl::OpenFiles() {
  MutexLock lock(mu_);
  std::vector<uint32_t> found;
  CAIRN_RETURN_IF_ERROR(files_.Open(
      {.path = directory.values_path(),
       .segment_bytes = directory.segment_bytes(),
       .max_segments = MaxSegmentsFor(options.capacity_bytes, directory.segment_bytes()),
       .direct = io_mode.ends_with("/direct")},
      &found));
  for (const uint32_t segment : found) map_.Add(segment);
  return OkStatus();
}

Result<uint64_t> DiskTier::Impl::NextEpoch() {
  uint64_t epoch = 1;
  auto stored = store_->GetSmall(kEpochKey);
  if (stored.ok() && stored->size() == 8) {
    std::memcpy(&epoch, stored->data(), 8);
    ++epoch;
  } else if (!stored.ok() && stored.status().code() != StatusCode::kNotFound) {
    return Explain(stored.status(), options.directory);
  }
  CAIRN_RETURN_IF_ERROR(store_->PutSmall(kEpochKey, {reinterpret_cast<const char*>(&epoch), 8}));
  return epoch;
}

DiskTier::Impl::~Impl() {
  // Queued operations still call back.
  {
    MutexLock lock(mu_);
    settled_cv_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return unsettled_ == 0 && reads_ == 0;
    });
    stopping_ = true;
  }
  room_cv_.NotifyAll();
  scrub_cv_.NotifyAll();
  if (room_thread_.joinable()) room_thread_.join();
  if (scrub_thread_.joinable()) scrub_thread_.join();
  records_cv_.NotifyAll();
  if (records_thread_.joinable()) records_thread_.join();
  writer_.reset();
  readers_.clear();
}

uint32_t DiskTier::Impl::max_extent_bytes() const {
  return static_cast<uint32_t>(
      std::min<uint64_t>(options.max_extent_bytes, directory.segment_bytes()));
}

Result<Extent> DiskTier::Impl::Reserve(uint32_t length) {
  if (length == 0 || length > max_extent_bytes()) {
    return InvalidArgument("field 'length': got {}, expected 1 to {}", length, max_extent_bytes());
  }
  MutexLock lock(mu_);
  const uint64_t bytes = Rounded(length);
  // A smaller capacity than before may be used up already.
  if (starved_ || used_bytes_ > options.capacity_bytes ||
      bytes > options.capacity_bytes - used_bytes_ || !map_.Fits(used_bytes_ + bytes)) {
    return Errorf(StatusCode::kResourceExhausted, "disk tier: no room for {} bytes ({} of {} used)",
                  bytes, used_bytes_, options.capacity_bytes);
  }
  used_bytes_ += bytes;
  const uint64_t id = next_id_++;
  entries_[id].length = length;
  return Extent{id, length};
}

void DiskTier::Impl::Release(const Extent& extent) {
  bool forget = false;
  {
    MutexLock lock(mu_);
    const auto it = entries_.find(extent.id);
    CAIRN_CHECK(it != entries_.end() && it->second.length == extent.length);
    CAIRN_CHECK(it->second.state != State::kWriting);
    used_bytes_ -= Rounded(extent.length);
    if (it->second.state == State::kWritten) {
      forget = true;
      map_.Kill(it->second.place, extent.length);
      forgotten_.push_back({extent.id, it->second.place.segment});
      ++changes_;
      if (starved_) {
        starved_ = map_.nearly_free() == 0 && map_.free() == 0;
        WantRoom();
      }
    }
    entries_.erase(it);
  }
  if (forget) records_cv_.NotifyOne();
}

Status DiskTier::Impl::Recover(const RecoverVisitor& visitor) {
  MutexLock lock(mu_);
  if (recovered_ || !entries_.empty()) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "disk tier: call Recover once, before any other call");
  }
  const Status status = store_->Scan(
      [&](const disk::StoredExtent& found) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        ++changes_;
        if (!map_.Restore(found.id, found.place, found.length, found.order)) {
          ++corrupt_records_;  // Its segment is gone.
          forgotten_.push_back({found.id, kNoSegment});
          return;
        }
        if (!visitor(Extent{found.id, found.length}, found.record)) {
          map_.Kill(found.place, found.length);
          forgotten_.push_back({found.id, found.place.segment});
          return;
        }
        --changes_;
        entries_[found.id] = {.place = found.place,
                              .length = found.length,
                              .state = State::kWritten,
                              .hash = found.hash};
        used_bytes_ += Rounded(found.length);
      },
      [&](uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        ++corrupt_records_;
        ++changes_;
        forgotten_.push_back({id, kNoSegment});
      });
  // Without all records nothing may be written: what was not seen would be overwritten.
  if (!status.ok()) return Explain(status, options.directory);
  map_.FinishRestore(SteadyClock::Get().Now());
  recovered_ = true;
  WantRoom();
  records_cv_.NotifyOne();
  return OkStatus();
}

Status DiskTier::Impl::Flush() {
  MutexLock lock(mu_);
  const uint64_t goal = changes_;
  const uint64_t failed = failed_batches_;
  settled_cv_.Wait(mu_, [this, goal, failed]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return changes_done_ >= goal || failed_batches_ != failed || stopping_;
  });
  return changes_done_ >= goal ? OkStatus() : last_failure_;
}

Status DiskTier::Impl::PutMeta(std::string_view name, std::string_view value) {
  if (name.empty()) return InvalidArgument("field 'name': got '', expected a name");
  return store_->PutSmall(MetaKey(name), value);
}

Status DiskTier::Impl::DeleteMeta(std::string_view name) {
  if (name.empty()) return InvalidArgument("field 'name': got '', expected a name");
  return store_->DeleteSmall(MetaKey(name));
}

Status DiskTier::Impl::ListMeta(
    const std::function<void(std::string_view, std::string_view)>& visitor) {
  const Status status =
      store_->ListSmall(kMetaPrefix, [&](std::string_view key, std::string_view value) {
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
  stats.written_bytes = written_bytes_;
  return stats;
}

DiskTierStats DiskTier::Impl::GetDiskStats() const {
  DiskTierStats stats;
  stats.segment_bytes = directory.segment_bytes();
  stats.corrupt_reads = corrupt_reads_;
  stats.corrupt_records = corrupt_records_;
  stats.scrubbed_bytes = scrubbed_bytes_;
  stats.scrub_failures = scrub_failures_;
  MutexLock lock(mu_);
  stats.segments = map_.present();
  stats.free_segments = map_.free();
  stats.waiting_bytes = waiting_bytes_;
  stats.moved_bytes = moved_bytes_;
  return stats;
}

uint64_t DiskTier::Impl::memory_bytes() const {
  const uint64_t database = store_->MemoryBytes();
  MutexLock lock(mu_);
  // And a byte of control for each slot, and each id once more in its segment.
  return database + entries_.capacity() * (sizeof(decltype(entries_)::value_type) + 1 + 8);
}

}  // namespace cairn::cache
