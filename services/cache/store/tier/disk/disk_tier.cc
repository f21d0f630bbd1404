#include "services/cache/store/tier/disk/disk_tier.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/log/log.h"
#include "services/cache/store/tier/disk/directory.h"
#include "services/cache/store/tier/disk/extent_store.h"
#include "services/cache/store/tier/disk/io_backend.h"
#include "services/cache/store/tier/disk/meta_store.h"
#include "services/cache/store/tier/disk/value_files.h"

namespace cairn::cache {
namespace {

// Ids: the number of this opening, then a counter. So no id comes twice, whatever was lost.
constexpr int kEpochShift = 40;
constexpr std::string_view kEpochKey = "i/epoch";

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

// The kinds of I/O to try, best first.
std::vector<disk::IoKind> KindsFor(const DiskTierOptions& options, bool direct,
                                   std::string* reason) {
  using disk::IoKind;
  if (options.io_backend == "io_uring") return {IoKind::kUring};
  if (options.io_backend == "aio") return {IoKind::kAio};
  if (options.io_backend == "threads") return {IoKind::kThreads};
  std::vector<IoKind> kinds = {disk::ProbeIoKind(reason)};
  if (kinds[0] == IoKind::kUring) kinds.push_back(IoKind::kAio);
  if (kinds[0] != IoKind::kThreads) kinds.push_back(IoKind::kThreads);
  // Native asynchronous I/O blocks in its submission without O_DIRECT.
  if (!direct) std::erase(kinds, IoKind::kAio);
  return kinds;
}

}  // namespace

class DiskTier::Impl {
 public:
  static Result<std::unique_ptr<Impl>> Open(const DiskTierOptions& options);

  // Says what to do about damage; other errors stay as they are.
  Status Explain(const Status& status) const {
    if (status.code() != StatusCode::kDataLoss) return status;
    return Errorf(
        StatusCode::kDataLoss,
        "disk.path: the database in '{}' is damaged and cannot be opened ({}); restore it, delete "
        "the directory, or let disk.wipe_on_damage delete what it holds",
        options.directory, Message(status));
  }

  const DiskTierOptions options;
  disk::Directory directory;
  std::string io_mode;  // Constant after Open, as is all that follows.
  std::unique_ptr<disk::MetaStore> records;
  disk::ValueFiles files;
  disk::IoLanes lanes;
  std::optional<disk::ExtentStore> store;

 private:
  Impl(const DiskTierOptions& chosen, disk::Directory opened)
      : options(chosen), directory(std::move(opened)) {}
  Status OpenRecords();
  Status OpenLanes(uint64_t segment_bytes);
  Status OpenStore(disk::ValueFileMap map);
  Result<uint64_t> NextEpoch();
};

Result<std::unique_ptr<DiskTier::Impl>> DiskTier::Impl::Open(const DiskTierOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckOptions(options));
  disk::ValueFileMap map = disk::ExtentStore::MapFor(options.capacity_bytes);
  CAIRN_ASSIGN_OR_RETURN(disk::Directory directory,
                         disk::Directory::Open({.path = options.directory,
                                                .node_id = options.node_id,
                                                .segment_bytes = map.segment_bytes(),
                                                .wipe_on_mismatch = options.wipe_on_mismatch,
                                                .take_over = options.take_over}));
  std::unique_ptr<Impl> impl(new Impl(options, std::move(directory)));
  CAIRN_RETURN_IF_ERROR(impl->OpenRecords());
  CAIRN_RETURN_IF_ERROR(impl->OpenLanes(map.segment_bytes()));
  CAIRN_RETURN_IF_ERROR(impl->OpenStore(std::move(map)));
  return impl;
}

Status DiskTier::Impl::OpenRecords() {
  auto opened = OpenMetaStore(directory, options.wipe_on_damage);
  if (!opened.ok() && opened.status().code() == StatusCode::kDataLoss && options.wipe_on_damage) {
    log::Warn("disk_tier_wiped",
              {{"directory", options.directory}, {"reason", Message(opened.status())}});
    CAIRN_RETURN_IF_ERROR(directory.Wipe());
    opened = OpenMetaStore(directory, false);
  }
  if (!opened.ok()) return Explain(opened.status());
  records = std::move(*opened);
  if (const uint64_t lost = records->lost_pieces(); lost > 0) {
    log::Warn("disk_tier_log_damaged",
              {{"directory", options.directory}, {"pieces", log::Num(lost)}});
  }
  return OkStatus();
}

Status DiskTier::Impl::OpenLanes(uint64_t segment_bytes) {
  const bool direct = options.direct_io && directory.SupportsDirectIo();
  std::string reason;
  const std::vector<disk::IoKind> kinds = KindsFor(options, direct, &reason);
  // Bytes that were read are hashed on the backend's thread: where there are processors to spare,
  // by more than one.
  const size_t readers = std::min<size_t>(
      options.queue_depth, std::clamp(std::thread::hardware_concurrency() / 4, 1u, 4u));
  const auto make = [&](disk::IoKind kind, const disk::IoBackendOptions& backend_options)
      -> Result<std::unique_ptr<disk::IoBackend>> {
    auto backend = disk::MakeIoBackend(kind, backend_options);
    if (backend.ok() && options.wrap_io) return options.wrap_io(std::move(*backend));
    return backend;
  };
  CAIRN_ASSIGN_OR_RETURN(
      lanes, disk::MakeIoLanes(
                 kinds, {.depth = options.queue_depth, .readers = readers, .make = make}, &reason));
  io_mode = std::string(disk::Name(lanes.kind)) + (direct ? "/direct" : "/buffered");
  log::Info(
      "disk_tier_io",
      {{"mode", io_mode}, {"why_not_better", reason}, {"segment_bytes", log::Num(segment_bytes)}});
  return OkStatus();
}

Status DiskTier::Impl::OpenStore(disk::ValueFileMap map) {
  const auto size_of = [this](uint32_t segment) -> std::optional<uint64_t> {
    const auto stored = records->GetSmall(disk::SegmentRoom::SizeKey(segment));
    uint64_t bytes = 0;
    if (!stored.ok() || stored->size() != sizeof(bytes)) return std::nullopt;
    std::memcpy(&bytes, stored->data(), sizeof(bytes));
    return bytes;
  };
  CAIRN_ASSIGN_OR_RETURN(const auto found,
                         files.Open({.path = directory.values_path(),
                                     .direct = io_mode.ends_with("/direct"),
                                     .max_open = disk::DescriptorShare::OfProcess().value_files},
                                    size_of, directory.segment_bytes()));
  CAIRN_ASSIGN_OR_RETURN(const uint64_t epoch, NextEpoch());
  if (directory.is_new()) CAIRN_RETURN_IF_ERROR(directory.MarkReady());
  store.emplace(disk::ExtentStoreOptions{.capacity_bytes = options.capacity_bytes,
                                         .max_extent_bytes = options.max_extent_bytes,
                                         .queue_depth = options.queue_depth,
                                         .queue_capacity = options.queue_capacity,
                                         .min_free_bytes = options.min_free_bytes,
                                         .scrub_bytes_per_second = options.scrub_bytes_per_second,
                                         .meta_patience = options.meta_patience,
                                         .first_id = epoch << kEpochShift},
                disk::ExtentStore::Parts{.store = *records,
                                         .files = files,
                                         .lanes = lanes,
                                         .clock = SteadyClock::Get(),
                                         .start = disk::OnThreads()},
                std::move(map));
  for (const auto& file : found) store->AddFile(file.segment, file.bytes);
  return OkStatus();
}

Result<uint64_t> DiskTier::Impl::NextEpoch() {
  uint64_t epoch = 1;
  auto stored = records->GetSmall(kEpochKey);
  if (stored.ok() && stored->size() == 8) {
    std::memcpy(&epoch, stored->data(), 8);
    ++epoch;
  } else if (!stored.ok() && stored.status().code() != StatusCode::kNotFound) {
    return Explain(stored.status());
  }
  CAIRN_RETURN_IF_ERROR(records->PutSmall(kEpochKey, {reinterpret_cast<const char*>(&epoch), 8}));
  return epoch;
}

uint64_t DiskTier::LeastRoom(uint64_t capacity_bytes) {
  return disk::ExtentStore::MapFor(capacity_bytes).segment_bytes();
}

Result<std::unique_ptr<DiskTier>> DiskTier::Open(const DiskTierOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<Impl> impl, Impl::Open(options));
  return std::unique_ptr<DiskTier>(new DiskTier(std::move(impl)));
}

DiskTier::DiskTier(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DiskTier::~DiskTier() = default;

Result<Extent> DiskTier::Reserve(uint32_t length) { return impl_->store->Reserve(length); }
void DiskTier::Release(const Extent& extent) { impl_->store->Release(extent); }
void DiskTier::Write(const Extent& extent, std::string_view record,
                     std::span<const std::byte> source, IoCallback done) {
  impl_->store->Write(extent, record, source, std::move(done));
}
void DiskTier::Read(const Extent& extent, std::span<std::byte> destination, IoCallback done) {
  impl_->store->Read(extent, destination, std::move(done));
}
void DiskTier::ReadRange(const Extent& extent, uint64_t offset, std::span<std::byte> destination,
                         IoCallback done) {
  impl_->store->ReadRange(extent, offset, destination, std::move(done));
}
uint32_t DiskTier::max_extent_bytes() const { return impl_->store->max_extent_bytes(); }

Status DiskTier::Recover(const RecoverVisitor& visitor) {
  return impl_->Explain(impl_->store->Recover(visitor));
}

Status DiskTier::Flush(std::chrono::nanoseconds limit, const std::function<bool()>& cancelled) {
  const TimePoint now = SteadyClock::Get().Now();
  const TimePoint deadline = limit >= TimePoint::max() - now ? TimePoint::max() : now + limit;
  return impl_->store->Flush({.deadline = deadline, .cancelled = cancelled});
}

Result<std::string> DiskTier::RecordOf(const Extent& extent) {
  return impl_->records->RecordOf(extent.id);
}
VictimGroup DiskTier::NextVictims() { return impl_->store->NextVictims(); }
void DiskTier::SetDamageListener(DamageListener listener) {
  impl_->store->damage().SetListener(std::move(listener));
}
Status DiskTier::PutMeta(std::string_view name, std::string_view value) {
  return impl_->store->names().Put(name, value);
}
Status DiskTier::DeleteMeta(std::string_view name) { return impl_->store->names().Delete(name); }
Status DiskTier::ListMeta(
    const std::function<void(std::string_view name, std::string_view value)>& visitor) {
  return impl_->Explain(impl_->store->names().List(visitor));
}

TierStats DiskTier::GetStats() const {
  const disk::ExtentStore::Stats stats = impl_->store->GetStats();
  return {.capacity_bytes = impl_->options.capacity_bytes,
          .used_bytes = stats.extents.used_bytes,
          .extents = stats.extents.extents,
          .read_bytes = stats.read_bytes,
          .written_bytes = stats.extents.written_bytes,
          .io_errors = stats.io_errors};
}

DiskTierStats DiskTier::GetDiskStats() const {
  const disk::ExtentStore::Stats stats = impl_->store->GetStats();
  return {.segments = stats.extents.segments,
          .free_segments = stats.extents.free_segments,
          .segment_bytes = impl_->store->segment_bytes(),
          .waiting_bytes = stats.waiting_bytes,
          .corrupt_reads = stats.corrupt_reads,
          .corrupt_records = stats.corrupt_records + impl_->records->lost_pieces(),
          .trimmed_extents = stats.trimmed_extents,
          .moved_bytes = stats.extents.moved_bytes,
          .scrubbed_bytes = stats.scrubbed_bytes,
          .scrub_failures = stats.damaged,
          .reads = stats.reads,
          .writes = stats.writes,
          .syncs = stats.syncs};
}

const std::string& DiskTier::io_mode() const { return impl_->io_mode; }
const std::string& DiskTier::node_id() const { return impl_->directory.node_id(); }
uint64_t DiskTier::MapBytes() const { return impl_->store->MapBytes(); }
uint64_t DiskTier::memory_bytes() const { return impl_->records->MemoryBytes() + MapBytes(); }

}  // namespace cairn::cache
