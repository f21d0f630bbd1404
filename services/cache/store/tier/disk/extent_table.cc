#include "services/cache/store/tier/disk/extent_table.h"

#include <algorithm>

#include "cairn/common/hash.h"

namespace cairn::cache::disk {
namespace {

using Stream = ValueFileMap::Stream;

// Small extents that lie behind each other go in one request.
constexpr uint64_t kGroupBytes = 1 << 20;
constexpr size_t kGroupExtents = 64;
// Where enough waits for a full group, it is handed to the backend, which keeps `queue_depth` of
// them at the device, before the device is free for it: so that gets the next one as soon as one
// ends, and not after what follows the end here. Less waits for more to go with it.
constexpr size_t kAhead = 2;
// This share of the written bytes may be written a second time because the owner wants to keep
// them: amplification stays below 1.05.
constexpr double kKeepShare = 0.04;

}  // namespace

uint32_t ExtentTable::HeadOf(std::span<const std::byte> bytes) {
  const uint64_t hash = Xxh3(bytes.first(std::min<size_t>(bytes.size(), Tier::kHeadBytes)));
  return std::max<uint32_t>(1, static_cast<uint32_t>(hash >> 40));
}

ExtentTable::ExtentTable(const Options& options, ValueFileMap map)
    : options_(options),
      segment_bytes_(map.segment_bytes()),
      map_(std::move(map)),
      next_id_(options.first_id) {}

Result<Extent> ExtentTable::Reserve(uint32_t length) {
  MutexLock lock(mu_);
  const uint64_t bytes = Rounded(length);
  // A smaller capacity than before may be used up already.
  if (starved_ || used_bytes_ > options_.capacity_bytes ||
      bytes > options_.capacity_bytes - used_bytes_ || !map_.Fits(used_bytes_ + bytes)) {
    return Errorf(StatusCode::kResourceExhausted, "disk tier: no room for {} bytes ({} of {} used)",
                  bytes, used_bytes_, options_.capacity_bytes);
  }
  used_bytes_ += bytes;
  const uint64_t id = next_id_++;
  entries_[id].length = length;
  return Extent{id, length};
}

std::optional<ForgottenExtent> ExtentTable::Release(const Extent& extent, bool* wants_room) {
  MutexLock lock(mu_);
  const auto it = entries_.find(extent.id);
  CAIRN_CHECK(it != entries_.end() && it->second.length == extent.length);
  CAIRN_CHECK(it->second.state != State::kWriting);
  used_bytes_ -= Rounded(extent.length);
  std::optional<ForgottenExtent> forgotten;
  if (it->second.state == State::kWritten) {
    map_.Kill(it->second.place, extent.length);
    forgotten = {extent.id, it->second.place.segment};
    if (starved_) {
      starved_ = map_.nearly_free() == 0 && map_.free() == 0;
      *wants_room = true;
    }
  }
  entries_.erase(it);
  return forgotten;
}

Status ExtentTable::Enqueue(QueuedWrite* write) {
  const Extent& extent = write->extent;
  MutexLock lock(mu_);
  const auto it = entries_.find(extent.id);
  if (!recovered_) {
    return Errorf(StatusCode::kFailedPrecondition, "disk tier: call Recover before Write");
  }
  if (it == entries_.end() || it->second.length != extent.length ||
      it->second.state != State::kReserved) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "disk tier: extent {} is not reserved, or was written before", extent.id);
  }
  if (queue_.size() >= options_.queue_capacity) {
    return Errorf(StatusCode::kResourceExhausted, "disk tier: the write queue is full ({} wait)",
                  queue_.size());
  }
  it->second.state = State::kWriting;
  it->second.head = write->head;
  queue_.push_back(std::move(*write));
  return OkStatus();
}

bool ExtentTable::FullGroupWaits() const {
  uint64_t bytes = 0;
  for (size_t i = 0; i < std::min(queue_.size(), kGroupExtents); ++i) {
    bytes += queue_[i].extent.length;
  }
  return bytes >= kGroupBytes || queue_.size() >= kGroupExtents;
}

ExtentTable::Group ExtentTable::NextGroup(TimePoint now) {
  Group group;
  MutexLock lock(mu_);
  if (groups_ >= options_.queue_depth &&
      (groups_ >= kAhead * options_.queue_depth || !FullGroupWaits())) {
    return group;
  }
  uint64_t bytes = 0;
  while (!queue_.empty() && group.writes.size() < kGroupExtents) {
    QueuedWrite& write = queue_.front();
    if (!group.writes.empty() && (bytes + write.extent.length > kGroupBytes ||
                                  !map_.Continues(Stream::kFresh, write.extent.length))) {
      break;
    }
    // The last free segment is for moves, unless more files may be made.
    const auto place = map_.Allocate(Stream::kFresh, write.extent.id, write.extent.length,
                                     /*last=*/map_.NextAbsent().has_value(), now);
    if (!place) {
      group.wants_room = true;
      break;
    }
    bytes += write.extent.length;
    write.place = *place;
    group.writes.push_back(std::move(write));
    queue_.pop_front();
  }
  if (group.writes.empty()) return group;
  ++groups_;
  group.wants_room |= map_.NeedsSpare(Stream::kFresh);
  return group;
}

std::vector<PlacedExtent> ExtentTable::Landed(std::vector<QueuedWrite> group) {
  std::vector<PlacedExtent> placed;
  placed.reserve(group.size());
  MutexLock lock(mu_);
  --groups_;
  for (QueuedWrite& write : group) {
    PlacedExtent& p = placed.emplace_back();
    p.stored = {.id = write.extent.id,
                .place = write.place,
                .length = write.extent.length,
                .order = map_.segment(write.place.segment).order,
                .hash = write.hash,
                .record = write.record};
    p.done = std::move(write.done);
  }
  return placed;
}

void ExtentTable::GiveUp(const std::vector<QueuedWrite>& group) {
  MutexLock lock(mu_);
  --groups_;
  for (const QueuedWrite& write : group) {
    entries_[write.extent.id].state = State::kReserved;
    map_.Settle(write.place, write.extent.length, /*lives=*/false);
  }
}

std::vector<QueuedWrite> ExtentTable::TakeWaiting() {
  MutexLock lock(mu_);
  std::vector<QueuedWrite> taken(std::move_iterator(queue_.begin()),
                                 std::move_iterator(queue_.end()));
  queue_.clear();
  for (const QueuedWrite& write : taken) entries_[write.extent.id].state = State::kReserved;
  return taken;
}

bool ExtentTable::waiting() const {
  MutexLock lock(mu_);
  return !queue_.empty();
}

std::vector<PlacedExtent> ExtentTable::StillWanted(std::vector<PlacedExtent> placed) {
  MutexLock lock(mu_);
  std::erase_if(placed, [&](const PlacedExtent& p) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!p.moved) return false;
    const auto it = entries_.find(p.stored.id);
    if (it != entries_.end() && it->second.place == p.from) return false;
    // Released since: its record must not come back.
    map_.Settle(p.stored.place, p.stored.length, /*lives=*/false);
    return true;
  });
  return placed;
}

std::vector<ForgottenExtent> ExtentTable::Settle(std::span<const PlacedExtent> placed,
                                                 std::span<const ForgottenExtent> forgotten,
                                                 bool written) {
  std::vector<ForgottenExtent> again;
  MutexLock lock(mu_);
  if (written) {
    for (const ForgottenExtent& f : forgotten) {
      if (f.segment != ForgottenExtent::kNoSegment) map_.Unhold(f.segment);
    }
  }
  for (const PlacedExtent& p : placed) {
    const StoredExtent& stored = p.stored;
    const auto it = entries_.find(stored.id);
    if (!written) {
      map_.Settle(stored.place, stored.length, /*lives=*/false);
      if (!p.moved) it->second.state = State::kReserved;
    } else if (!p.moved) {
      map_.Settle(stored.place, stored.length, /*lives=*/true);
      it->second.place = stored.place;
      it->second.hash = stored.hash;
      it->second.state = State::kWritten;
      written_bytes_ += stored.length;
      EarnCredit(kKeepShare * stored.length);
    } else if (it != entries_.end() && it->second.place == p.from) {
      map_.Settle(stored.place, stored.length, /*lives=*/true);
      it->second.place = stored.place;
      moved_bytes_ += stored.length;
      EarnCredit(-static_cast<double>(stored.length));
      // The record names the new place already.
      map_.Kill(p.from, stored.length);
      map_.Unhold(p.from.segment);
    } else {
      // Released while the record was written: it is forgotten once more, and until then the new
      // place stays held.
      again.push_back({stored.id, stored.place.segment});
    }
  }
  if (map_.free() > 0) starved_ = false;
  return again;
}

void ExtentTable::EarnCredit(double bytes) {
  // Neither saved up in quiet times nor owed for long after much was moved for other reasons.
  const double most = static_cast<double>(segment_bytes_) / 2;
  keep_credit_ = std::clamp(keep_credit_ + bytes, -most, most);
}

Result<Resident> ExtentTable::BeginRead(const Extent& extent) {
  MutexLock lock(mu_);
  const auto it = entries_.find(extent.id);
  if (it == entries_.end() || it->second.state != State::kWritten ||
      it->second.length != extent.length) {
    return Errorf(StatusCode::kNotFound, "disk tier: extent {} holds nothing", extent.id);
  }
  if (reads_ >= options_.queue_depth + options_.queue_capacity) {
    return Errorf(StatusCode::kResourceExhausted, "disk tier: the read queue is full ({} wait)",
                  options_.queue_capacity);
  }
  map_.Hold(it->second.place.segment);
  ++reads_;
  return ResidentOf(extent.id);
}

bool ExtentTable::EndRead(const Resident& resident, uint32_t head) {
  MutexLock lock(mu_);
  map_.Unhold(resident.place.segment);
  const auto it = head == 0 ? entries_.end() : entries_.find(resident.id);
  if (it != entries_.end()) it->second.head = head;
  return !queue_.empty();
}

void ExtentTable::ReadReturned() {
  MutexLock lock(mu_);
  --reads_;
}

bool ExtentTable::LivesAt(uint64_t id, uint32_t segment) const {
  const auto it = entries_.find(id);
  return it != entries_.end() && it->second.state == State::kWritten &&
         it->second.place.segment == segment;
}

Resident ExtentTable::ResidentOf(uint64_t id) const {
  const Entry& entry = entries_.at(id);
  return {id, entry.place, entry.length, entry.hash, entry.head};
}

std::vector<Resident> ExtentTable::ResidentsOf(uint32_t segment) const {
  std::vector<Resident> residents;
  for (const uint64_t id : map_.segment(segment).ids) {
    if (LivesAt(id, segment)) residents.push_back(ResidentOf(id));
  }
  return residents;
}

std::optional<Resident> ExtentTable::NextToScrub(std::pair<uint32_t, uint32_t>* cursor) {
  MutexLock lock(mu_);
  for (; cursor->first < map_.size(); ++cursor->first, cursor->second = 0) {
    const auto& ids = map_.segment(cursor->first).ids;
    while (cursor->second < ids.size()) {
      const uint64_t id = ids[cursor->second++];
      if (!LivesAt(id, cursor->first)) continue;
      map_.Hold(cursor->first);
      return ResidentOf(id);
    }
  }
  *cursor = {0, 0};
  return std::nullopt;
}

RoomStep ExtentTable::NextRoomStep(bool may_make, bool leaving) {
  using What = RoomStep::What;
  RoomStep step;
  MutexLock lock(mu_);
  if (!recovered_) return step;
  if (const auto surplus = map_.Surplus()) {
    map_.Remove(*surplus);
    return {.what = What::kDelete, .segment = *surplus};
  }
  const std::optional<uint32_t> absent = map_.NextAbsent();
  if (const auto next = leaving ? map_.NextLeaving() : std::nullopt) {
    const bool make = map_.free() == 0 && absent && may_make;
    return {.what = make ? What::kMake : What::kMoveOut,
            .segment = make ? *absent : *next,
            .leaving = true};
  }
  const uint32_t coming = map_.free() + map_.nearly_free();
  step.waiting = !queue_.empty() && !map_.Continues(Stream::kFresh, queue_.front().extent.length) &&
                 map_.free() <= (absent ? 0u : 1u);
  if (!step.waiting && !starved_ &&
      !(map_.NeedsSpare(Stream::kFresh) && coming < (absent ? 1u : 2u))) {
    return step;
  }
  if (absent && may_make) {
    step.what = What::kMake;
    step.segment = *absent;
    return step;
  }
  step.no_file = absent.has_value();
  if (coming >= 2) return step;  // They are free as soon as their records are gone.
  if (const auto victim = map_.Cheapest()) {
    step.what = What::kMoveOut;
    step.segment = *victim;
  } else {
    step.what = What::kRefuse;
  }
  return step;
}

void ExtentTable::FileMade(uint32_t segment) {
  MutexLock lock(mu_);
  map_.Add(segment);
  starved_ = false;
}

bool ExtentTable::Starve(const RoomStep& step, bool records_fail) {
  MutexLock lock(mu_);
  if (!step.waiting) return false;
  if (map_.nearly_free() > 0) return records_fail;
  starved_ = !step.no_file;
  return true;
}

std::vector<Resident> ExtentTable::BeginMove(uint32_t segment) {
  MutexLock lock(mu_);
  map_.Hold(segment);
  return ResidentsOf(segment);
}

Result<std::optional<PlacedExtent>> ExtentTable::PlaceMoved(const Resident& resident,
                                                            std::string record, TimePoint now) {
  MutexLock lock(mu_);
  const auto it = entries_.find(resident.id);
  if (it == entries_.end() || it->second.place != resident.place) {
    return Errorf(StatusCode::kNotFound, "disk tier: extent {} was released", resident.id);
  }
  const auto place =
      map_.Allocate(Stream::kMoved, resident.id, resident.length, /*last=*/true, now);
  if (!place) return std::optional<PlacedExtent>();
  PlacedExtent p;
  p.stored = {.id = resident.id,
              .place = *place,
              .length = resident.length,
              .order = map_.segment(place->segment).order,
              .hash = resident.hash,
              .record = {}};
  p.moved = true;
  p.from = resident.place;
  p.record_copy = std::move(record);
  return std::optional<PlacedExtent>(std::move(p));
}

void ExtentTable::MoveFailed(const PlacedExtent& placed) {
  MutexLock lock(mu_);
  map_.Settle(placed.stored.place, placed.stored.length, /*lives=*/false);
}

bool ExtentTable::EndMove(uint32_t segment) {
  MutexLock lock(mu_);
  map_.Unhold(segment);
  return map_.segment(segment).live_pages == 0;
}

VictimGroup ExtentTable::NextVictims(TimePoint now) {
  VictimGroup group;
  MutexLock lock(mu_);
  const auto promised = static_cast<double>(map_.draining_bytes());
  const auto segment = map_.TakeVictim();
  if (!segment) return group;
  if (!starved_ && keep_credit_ > promised) {
    group.keep_bytes = static_cast<uint64_t>(keep_credit_ - promised);
  }
  const auto age = now - map_.segment(*segment).sealed_at;
  for (const Resident& r : ResidentsOf(*segment)) {
    group.members.push_back({{r.id, r.length}, {}, age});
  }
  return group;
}

bool ExtentTable::Untouched() const {
  MutexLock lock(mu_);
  return !recovered_ && entries_.empty();
}

void ExtentTable::AddFile(uint32_t segment, uint64_t bytes) {
  MutexLock lock(mu_);
  map_.Add(segment, bytes);
}

bool ExtentTable::FilesAreTooLarge() const {
  MutexLock lock(mu_);
  return map_.TooLarge();
}

ExtentTable::Restored ExtentTable::Restore(const StoredExtent& found, bool keep) {
  MutexLock lock(mu_);
  if (!map_.Restore(found.id, found.place, found.length, found.order)) return Restored::kBroken;
  const uint64_t bytes = Rounded(found.length);
  // A move of a longer one would find no segment that it fits into.
  if (!keep || found.length > segment_bytes_ || used_bytes_ + bytes > options_.capacity_bytes) {
    map_.Kill(found.place, found.length);
    return Restored::kTrimmed;
  }
  entries_[found.id] = {
      .place = found.place, .length = found.length, .state = State::kWritten, .hash = found.hash};
  used_bytes_ += bytes;
  return Restored::kKept;
}

void ExtentTable::FinishRecovery(TimePoint now) {
  MutexLock lock(mu_);
  map_.FinishRestore(now);
  recovered_ = true;
}

ExtentTable::Stats ExtentTable::GetStats() const {
  MutexLock lock(mu_);
  return {.used_bytes = used_bytes_,
          .extents = entries_.size(),
          .written_bytes = written_bytes_,
          .moved_bytes = moved_bytes_,
          .segments = map_.present(),
          .free_segments = map_.free()};
}

uint64_t ExtentTable::moved_bytes() const {
  MutexLock lock(mu_);
  return moved_bytes_;
}

uint64_t ExtentTable::MemoryBytes() const {
  MutexLock lock(mu_);
  // And a byte of control for each slot, and each id once more in its segment.
  return entries_.capacity() * (sizeof(decltype(entries_)::value_type) + 1 + 8);
}

}  // namespace cairn::cache::disk
