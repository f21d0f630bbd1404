#include "services/cache/store/tier/disk/impl.h"

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
                         disk::MetaStore::Open(directory.database_path(), directory.is_new(),
                                               disk::DescriptorShare::OfProcess().database));
  if (check) {
    CAIRN_RETURN_IF_ERROR(store->ListSmall("", [](std::string_view, std::string_view) {}));
    CAIRN_RETURN_IF_ERROR(store->Scan([](const disk::StoredExtent&) {}, [](uint64_t) {}));
  }
  return store;
}

}  // namespace

Status DiskTier::Impl::Explain(const Status& status) const {
  if (status.code() != StatusCode::kDataLoss) return status;
  return Errorf(
      StatusCode::kDataLoss,
      "disk.path: the database in '{}' is damaged and cannot be opened ({}); restore it, delete "
      "the directory, or let disk.wipe_on_damage delete what it holds",
      options.directory, Message(status));
}

std::string DiskTier::Impl::SizeKey(uint32_t segment) { return fmt::format("f/{:06}", segment); }

namespace {

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
  const uint64_t segment_bytes = SegmentBytesFor(options.capacity_bytes);
  disk::ValueFileMap map(segment_bytes, MaxSegmentsFor(options.capacity_bytes, segment_bytes));
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
  impl->StartThreads();
  return impl;
}

void DiskTier::Impl::StartThreads() {
  records_thread_ = std::thread([this] { RecordsLoop(); });
  room_thread_ = std::thread([this] { RoomLoop(); });
  sync_thread_ = std::thread([this] { SyncLoop(); });
  meta_thread_ = std::thread([this] { MetaLoop(); });
  if (options.scrub_bytes_per_second > 0) {
    scrub_thread_ = std::thread([this] { ScrubLoop(); });
  }
}

Status DiskTier::Impl::OpenStore() {
  auto opened = OpenMetaStore(directory, options.wipe_on_damage);
  if (!opened.ok() && opened.status().code() == StatusCode::kDataLoss && options.wipe_on_damage) {
    log::Warn("disk_tier_wiped",
              {{"directory", options.directory}, {"reason", Message(opened.status())}});
    CAIRN_RETURN_IF_ERROR(directory.Wipe());
    opened = OpenMetaStore(directory, false);
  }
  if (!opened.ok()) return Explain(opened.status());
  store_ = std::move(*opened);
  if (const uint64_t lost = store_->lost_pieces(); lost > 0) {
    corrupt_records_ += lost;
    log::Warn("disk_tier_log_damaged",
              {{"directory", options.directory}, {"pieces", log::Num(lost)}});
  }
  return OkStatus();
}

Status DiskTier::Impl::OpenBackends() {
  const bool direct = options.direct_io && directory.SupportsDirectIo();
  std::string reason;
  std::vector<disk::IoKind> kinds;
  if (options.io_backend == "auto") {
    kinds.push_back(disk::ProbeIoKind(&reason));
    if (kinds[0] == disk::IoKind::kUring) kinds.push_back(disk::IoKind::kAio);
    if (kinds[0] != disk::IoKind::kThreads) kinds.push_back(disk::IoKind::kThreads);
    // Native asynchronous I/O blocks in its submission without O_DIRECT.
    if (!direct) std::erase(kinds, disk::IoKind::kAio);
  } else {
    kinds.push_back(options.io_backend == "io_uring" ? disk::IoKind::kUring
                    : options.io_backend == "aio"    ? disk::IoKind::kAio
                                                     : disk::IoKind::kThreads);
  }
  // What was read is hashed on the backend's thread: where there are processors to spare, by more
  // than one.
  const size_t lanes = std::min<size_t>(
      options.queue_depth, std::clamp(std::thread::hardware_concurrency() / 4, 1u, 4u));
  const auto make = [&](disk::IoKind kind, const disk::IoBackendOptions& backend_options)
      -> Result<std::unique_ptr<disk::IoBackend>> {
    auto backend = disk::MakeIoBackend(kind, backend_options);
    if (backend.ok() && options.wrap_io) return options.wrap_io(std::move(*backend));
    return backend;
  };
  CAIRN_ASSIGN_OR_RETURN(
      disk::IoLanes made,
      disk::MakeIoLanes(kinds, {.depth = options.queue_depth, .readers = lanes, .make = make},
                        &reason));
  writer_ = std::move(made.writer);
  readers_ = std::move(made.readers);
  io_mode = std::string(disk::Name(made.kind)) + (direct ? "/direct" : "/buffered");
  log::Info(
      "disk_tier_io",
      {{"mode", io_mode}, {"why_not_better", reason}, {"segment_bytes", log::Num(segment_bytes_)}});
  return OkStatus();
}

Status DiskTier::Impl::OpenFiles() {
  const auto size_of = [this](uint32_t segment) -> std::optional<uint64_t> {
    const auto stored = store_->GetSmall(SizeKey(segment));
    uint64_t bytes = 0;
    if (!stored.ok() || stored->size() != sizeof(bytes)) return std::nullopt;
    std::memcpy(&bytes, stored->data(), sizeof(bytes));
    return bytes;
  };
  CAIRN_ASSIGN_OR_RETURN(const auto found,
                         files_.Open({.path = directory.values_path(),
                                      .direct = io_mode.ends_with("/direct"),
                                      .max_open = disk::DescriptorShare::OfProcess().value_files},
                                     size_of, directory.segment_bytes()));
  MutexLock lock(mu_);
  for (const auto& file : found) map_.Add(file.segment, file.bytes);
  return OkStatus();
}

Result<uint64_t> DiskTier::Impl::NextEpoch() {
  uint64_t epoch = 1;
  auto stored = store_->GetSmall(kEpochKey);
  if (stored.ok() && stored->size() == 8) {
    std::memcpy(&epoch, stored->data(), 8);
    ++epoch;
  } else if (!stored.ok() && stored.status().code() != StatusCode::kNotFound) {
    return Explain(stored.status());
  }
  CAIRN_RETURN_IF_ERROR(store_->PutSmall(kEpochKey, {reinterpret_cast<const char*>(&epoch), 8}));
  return epoch;
}

DiskTier::Impl::~Impl() {
  {
    MutexLock lock(meta_mu_);
    meta_stopping_ = true;
  }
  meta_cv_.NotifyAll();
  if (meta_thread_.joinable()) meta_thread_.join();
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
  sync_cv_.NotifyAll();
  if (sync_thread_.joinable()) sync_thread_.join();
  writer_.reset();
  readers_.clear();
}

uint32_t DiskTier::Impl::max_extent_bytes() const {
  return static_cast<uint32_t>(std::min<uint64_t>(options.max_extent_bytes, segment_bytes_));
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

Status DiskTier::Impl::ListMeta(
    const std::function<void(std::string_view, std::string_view)>& visitor) {
  const Status status =
      store_->ListSmall(kMetaPrefix, [&](std::string_view key, std::string_view value) {
        visitor(key.substr(kMetaPrefix.size()), value);
      });
  return Explain(status);
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
  stats.segment_bytes = segment_bytes_;
  stats.corrupt_reads = corrupt_reads_;
  stats.corrupt_records = corrupt_records_;
  stats.trimmed_extents = trimmed_extents_;
  stats.scrubbed_bytes = scrubbed_bytes_;
  stats.scrub_failures = scrub_failures_;
  MutexLock lock(mu_);
  stats.segments = map_.present();
  stats.free_segments = map_.free();
  stats.waiting_bytes = waiting_bytes_;
  stats.moved_bytes = moved_bytes_;
  return stats;
}

uint64_t DiskTier::Impl::MapBytes() const {
  MutexLock lock(mu_);
  // And a byte of control for each slot, and each id once more in its segment.
  return entries_.capacity() * (sizeof(decltype(entries_)::value_type) + 1 + 8);
}

uint64_t DiskTier::Impl::memory_bytes() const { return store_->MemoryBytes() + MapBytes(); }

}  // namespace cairn::cache
