#include "services/cache/store/tier/disk/extent_store.h"

#include <algorithm>
#include <utility>

#include "cairn/common/hash.h"
#include "services/cache/store/tier/disk/full_io.h"

namespace cairn::cache::disk {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGiB = 1 << 30;

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

}  // namespace

ValueFileMap ExtentStore::MapFor(uint64_t capacity_bytes) {
  const uint64_t segment = SegmentBytesFor(capacity_bytes);
  return ValueFileMap(segment, MaxSegmentsFor(capacity_bytes, segment));
}

ExtentStore::ExtentStore(const ExtentStoreOptions& options, const Parts& parts, ValueFileMap map)
    : options_(options),
      parts_(parts),
      table_({.capacity_bytes = options.capacity_bytes,
              .queue_depth = options.queue_depth,
              .queue_capacity = options.queue_capacity,
              .first_id = options.first_id},
             std::move(map)),
      damage_(parts.store),
      syncs_(parts.store, parts.files, parts.clock, parts.start),
      records_({.store = parts.store,
                .table = table_,
                .files = parts.files,
                .clock = parts.clock,
                .min_free_bytes = options.min_free_bytes,
                .settled = [this](size_t writes) { OnSettled(writes); }},
               parts.start),
      room_({.table = table_,
             .store = parts.store,
             .files = parts.files,
             .records = records_,
             .syncs = syncs_,
             .damage = damage_,
             .io = {parts.lanes, parts.files, parts.clock},
             .min_free_bytes = options.min_free_bytes,
             .start_writes =
                 [this] {
                   const Started started = StartWrites();
                   return started.some && started.wants_room;
                 },
             .refuse =
                 [this](const Status& status) {
                   const std::vector<QueuedWrite> writes = table_.TakeWaiting();
                   io_errors_ += writes.size();
                   Refuse(writes, status);
                 }},
            parts.start),
      scrubber_({.table = table_,
                 .damage = damage_,
                 .io = {parts.lanes, parts.files, parts.clock},
                 .bytes_per_second = options.scrub_bytes_per_second,
                 .want_room = [this] { room_.Want(); }},
                parts.start),
      names_(parts.store, parts.clock, options.meta_patience, parts.start) {}

ExtentStore::~ExtentStore() {
  names_.Stop();
  // Queued operations still call back.
  pending_.WaitForNone(parts_.clock);
  room_.Stop();
  scrubber_.Stop();
  records_.Stop();
  syncs_.Stop();
}

uint32_t ExtentStore::max_extent_bytes() const {
  return static_cast<uint32_t>(std::min<uint64_t>(options_.max_extent_bytes, segment_bytes()));
}

Result<Extent> ExtentStore::Reserve(uint32_t length) {
  if (length == 0 || length > max_extent_bytes()) {
    return InvalidArgument("field 'length': got {}, expected 1 to {}", length, max_extent_bytes());
  }
  return table_.Reserve(length);
}

void ExtentStore::Release(const Extent& extent) {
  bool wants_room = false;
  const auto forgotten = table_.Release(extent, &wants_room);
  if (forgotten) records_.Forget(*forgotten);
  if (wants_room) room_.Want();
}

void ExtentStore::Write(const Extent& extent, std::string_view record,
                        std::span<const std::byte> source, IoCallback done) {
  if (source.size() != extent.length) {
    return done(
        InvalidArgument("field 'source': got {} bytes, expected {}", source.size(), extent.length));
  }
  QueuedWrite write{.extent = extent,
                    .record = record,
                    .source = source,
                    .hash = Xxh3(source),
                    .head = ExtentTable::HeadOf(source),
                    .done = std::move(done),
                    .place = {}};
  pending_.Begin();
  if (const Status queued = table_.Enqueue(&write); !queued.ok()) {
    write.done(queued);
    return pending_.End(1);
  }
  Pump();
}

void ExtentStore::Pump() {
  if (StartWrites().wants_room) room_.Want();
}

ExtentStore::Started ExtentStore::StartWrites() {
  for (Started started;;) {
    ExtentTable::Group group = table_.NextGroup(parts_.clock.Now());
    started.wants_room |= group.wants_room;
    if (group.writes.empty()) return started;
    started.some = true;
    const Place place = group.writes.front().place;
    const Result<FileRef> file = parts_.files.Use(place.segment);
    if (!file.ok()) {
      table_.GiveUp(group.writes);
      ++io_errors_;
      Refuse(group.writes, file.status());
      continue;
    }
    auto* const io = FullIo::NewWrite((*file)->fd(), OffsetOf(place));
    for (const QueuedWrite& write : group.writes) io->AddSource(write.source);
    io->Start(parts_.lanes.writer.get(), [this, file = *file, begin = parts_.clock.Now(),
                                          shared = std::make_shared<std::vector<QueuedWrite>>(
                                              std::move(group.writes))](const Status& status) {
      writes_.Add(parts_.clock.Now() - begin);
      OnWritten(std::move(*shared), status);
    });
  }
}

void ExtentStore::OnWritten(std::vector<QueuedWrite> group, const Status& status) {
  if (!status.ok()) {
    table_.GiveUp(group);
    Pump();
    ++io_errors_;
    return Refuse(group, status);
  }
  syncs_.Wrote(group.front().place.segment);
  std::vector<PlacedExtent> placed = table_.Landed(std::move(group));
  Pump();
  records_.Add(std::move(placed));
}

void ExtentStore::Refuse(std::span<const QueuedWrite> writes, const Status& status) {
  for (const QueuedWrite& write : writes) write.done(status);
  pending_.End(writes.size());
}

void ExtentStore::OnSettled(size_t writes) {
  if (table_.waiting()) room_.Want();
  Pump();
  pending_.End(writes);
}

void ExtentStore::Read(const Extent& extent, std::span<std::byte> destination, IoCallback done) {
  if (destination.size() != extent.length) {
    return done(InvalidArgument("field 'destination': got {} bytes, expected {}",
                                destination.size(), extent.length));
  }
  const Result<Resident> resident = table_.BeginRead(extent);
  if (!resident.ok()) return done(resident.status());
  StartRead(
      parts_.lanes.reader(extent.id), *resident, 0, destination,
      [hash = resident->hash, id = extent.id, destination] {
        return Xxh3(destination) == hash
                   ? OkStatus()
                   : Errorf(StatusCode::kDataLoss, "disk tier: extent {}: hash is wrong", id);
      },
      /*learn_head=*/true, std::move(done));
}

void ExtentStore::ReadRange(const Extent& extent, uint64_t offset, std::span<std::byte> destination,
                            IoCallback done) {
  if (offset % Tier::kRangeGrain != 0 || offset > extent.length || destination.empty() ||
      destination.size() > extent.length - offset) {
    return done(InvalidArgument(
        "field 'offset': got {} bytes from {} on, expected a multiple of {} and an end within the "
        "extent's {} bytes",
        destination.size(), offset, Tier::kRangeGrain, extent.length));
  }
  const Result<Resident> resident = table_.BeginRead(extent);
  if (!resident.ok()) return done(resident.status());
  const bool has_head = offset == 0 && destination.size() >= Tier::kHeadBytes;
  if (has_head && resident->head == 0) {
    pending_.Begin();
    return EndRead(*resident, 0, 0,
                   Errorf(StatusCode::kFailedPrecondition,
                          "disk tier: extent {} was not read whole yet", extent.id),
                   done);
  }
  StartRead(
      parts_.lanes.ranges.get(), *resident, offset, destination,
      [head = has_head ? resident->head : 0, id = extent.id, destination] {
        return head == 0 || ExtentTable::HeadOf(destination) == head
                   ? OkStatus()
                   : Errorf(StatusCode::kDataLoss,
                            "disk tier: extent {}: other bytes lie in its "
                            "place",
                            id);
      },
      /*learn_head=*/false, std::move(done));
}

void ExtentStore::StartRead(IoBackend* lane, const Resident& extent, uint64_t offset,
                            std::span<std::byte> destination, std::function<Status()> check,
                            bool learn_head, IoCallback done) {
  pending_.Begin();
  const Result<FileRef> file = parts_.files.Use(extent.place.segment);
  if (!file.ok()) return EndRead(extent, 0, 0, file.status(), done);
  auto* const io = FullIo::NewRead((*file)->fd(), OffsetOf(extent.place) + offset);
  io->AddDestination(destination);
  io->Start(lane, [this, file = *file, begin = parts_.clock.Now(), extent, destination,
                   check = std::move(check), learn_head, done = std::move(done)](Status status) {
    reads_.Add(parts_.clock.Now() - begin);
    if (status.ok()) status = check();
    const bool known = status.ok() && learn_head;
    const uint32_t head = known ? ExtentTable::HeadOf(destination) : 0;
    EndRead(extent, destination.size(), head, std::move(status), done);
  });
}

void ExtentStore::EndRead(const Resident& extent, uint64_t bytes, uint32_t head, Status status,
                          const IoCallback& done) {
  if (status.ok()) {
    read_bytes_ += bytes;
  } else if (status.code() != StatusCode::kFailedPrecondition) {
    ++io_errors_;
    if (status.code() == StatusCode::kDataLoss) ++corrupt_reads_;
  }
  if (table_.EndRead(extent, head)) room_.Want();
  done(std::move(status));
  table_.ReadReturned();
  pending_.End(1);
}

Status ExtentStore::Flush(const Patience& patience) {
  CAIRN_RETURN_IF_ERROR(records_.WaitWritten(patience));
  return syncs_.Sync(patience);
}

VictimGroup ExtentStore::NextVictims() {
  VictimGroup group = table_.NextVictims(parts_.clock.Now());
  // An owner that gets no record does not know what it is, and leaves it: it is moved.
  for (VictimGroup::Member& member : group.members) {
    if (auto record = parts_.store.RecordOf(member.extent.id); record.ok()) {
      member.record = *std::move(record);
    }
  }
  return group;
}

ExtentStore::Stats ExtentStore::GetStats() const {
  return {.extents = table_.GetStats(),
          .read_bytes = read_bytes_,
          .io_errors = io_errors_ + syncs_.failures() + records_.failures() + room_.failures() +
                       names_.failures(),
          .waiting_bytes = records_.waiting_bytes(),
          .corrupt_reads = corrupt_reads_,
          .corrupt_records = corrupt_records_,
          .trimmed_extents = trimmed_extents_,
          .scrubbed_bytes = scrubber_.bytes(),
          .damaged = damage_.count(),
          .reads = reads_.Get(),
          .writes = writes_.Get(),
          .syncs = syncs_.times()};
}

}  // namespace cairn::cache::disk
