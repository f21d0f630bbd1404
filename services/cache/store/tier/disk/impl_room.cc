// Room: segment files, moving what lives out of the emptiest, what to evict next; and the scrubber,
// which reads like a move.

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "cairn/common/hash.h"
#include "common/log/log.h"
#include "services/cache/store/tier/disk/impl.h"

namespace cairn::cache {
namespace {

constexpr uint64_t kMoveBytes = 8 << 20;  // In memory at a time.
constexpr std::chrono::milliseconds kMakeAgain{200};
constexpr std::chrono::seconds kScrubPause{1};  // Between two passes, and while nothing is stored.

// Waits for several callbacks.
class Join {
 public:
  explicit Join(size_t count) : statuses_(count), left_(count) {}
  disk::FullIo::Done Callback(size_t i) {
    return [this, i](Status status) {
      MutexLock lock(mu_);
      statuses_[i] = std::move(status);
      if (--left_ == 0) done_.NotifyAll();
    };
  }
  std::vector<Status> Wait() {
    MutexLock lock(mu_);
    done_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return left_ == 0; });
    return std::move(statuses_);
  }

 private:
  Mutex mu_;
  CondVar done_;
  std::vector<Status> statuses_ ABSL_GUARDED_BY(mu_);
  size_t left_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

void DiskTier::Impl::WantRoom() {
  room_wanted_ = true;
  room_cv_.NotifyOne();
}

void DiskTier::Impl::RoomLoop() {
  pthread_setname_np(pthread_self(), "disk-room");
  for (;;) {
    {
      MutexLock lock(mu_);
      room_cv_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stopping_ || (room_wanted_ && recovered_);
      });
      if (stopping_) return;
      room_wanted_ = false;
    }
    while (MakeRoom()) PumpWrites();
    PumpWrites();
  }
}

bool DiskTier::Impl::MakeRoom() {
  using Stream = disk::ValueFileMap::Stream;
  if (DeleteSurplus() || EmptyLeaving()) return true;
  std::optional<uint32_t> victim;
  bool make = false;
  bool waiting = false;
  Status failure = OkStatus();
  {
    MutexLock lock(mu_);
    if (stopping_) return false;
    const bool absent = map_.NextAbsent().has_value();
    const uint32_t coming = map_.free() + map_.nearly_free();
    waiting = !queue_.empty() && !map_.Continues(Stream::kFresh, queue_.front().extent.length) &&
              map_.free() <= (absent ? 0u : 1u);
    if (!waiting && !starved_ &&
        !(map_.NeedsSpare(Stream::kFresh) && coming < (absent ? 1u : 2u))) {
      return false;
    }
    make = absent && SteadyClock::Get().Now() >= make_again_;
    if (absent && !make) failure = make_failure_;
    if (!make) {
      if (coming >= 2) return false;  // They are free as soon as their records are gone.
      victim = map_.Cheapest();
    }
  }
  if (make) return MakeSegment() || waiting;
  if (victim && MoveOut(*victim)) return true;
  {
    MutexLock lock(mu_);
    if (!waiting || map_.nearly_free() > 0) return false;
    starved_ = failure.ok();
  }
  RefuseWaiting(failure.ok() ? Errorf(StatusCode::kResourceExhausted,
                                      "disk tier: no segment file is free, and none can be emptied")
                             : failure);
  return false;
}

bool DiskTier::Impl::DeleteSurplus() {
  std::optional<uint32_t> surplus;
  {
    MutexLock lock(mu_);
    if (stopping_) return false;
    surplus = map_.Surplus();
    if (!surplus) return false;
    map_.Remove(*surplus);
  }
  files_.Delete(*surplus);
  (void)store_->DeleteSmall(SizeKey(*surplus));  // It is written anew with the next file.
  return true;
}

// A segment that a smaller capacity has no room for.
bool DiskTier::Impl::EmptyLeaving() {
  std::optional<uint32_t> leaving;
  bool make = false;
  {
    MutexLock lock(mu_);
    if (stopping_) return false;
    leaving = map_.NextLeaving();
    if (!leaving) return false;
    make = map_.free() == 0 && map_.NextAbsent() && SteadyClock::Get().Now() >= make_again_;
  }
  return make ? MakeSegment() : MoveOut(*leaving);
}

bool DiskTier::Impl::MakeSegment() {
  uint32_t segment;
  {
    MutexLock lock(mu_);
    segment = *map_.NextAbsent();
  }
  const Status made = MakeFile(segment);
  MutexLock lock(mu_);
  if (made.ok()) {
    map_.Add(segment);
    starved_ = false;
  } else {
    make_failure_ = made;
    make_again_ = SteadyClock::Get().Now() + kMakeAgain;
  }
  return made.ok();
}

Status DiskTier::Impl::MakeFile(uint32_t segment) {
  const uint64_t free = directory.FreeBytes();
  if (free < segment_bytes_ || free - segment_bytes_ < options.min_free_bytes) {
    return Errorf(StatusCode::kResourceExhausted,
                  "disk tier: the file system has {} free bytes; a segment of {} would leave fewer "
                  "than option 'min_free_bytes' ({})",
                  free, segment_bytes_, options.min_free_bytes);
  }
  // First its size: a file that a power loss cut is filled up again.
  CAIRN_RETURN_IF_ERROR(store_->PutSmall(
      SizeKey(segment), {reinterpret_cast<const char*>(&segment_bytes_), sizeof(segment_bytes_)}));
  CAIRN_RETURN_IF_ERROR(files_.Make(segment, segment_bytes_));
  return files_.SyncNames();
}

void DiskTier::Impl::RefuseWaiting(const Status& status) {
  std::deque<QueuedWrite> refused;
  {
    MutexLock lock(mu_);
    refused.swap(queue_);
    for (const QueuedWrite& write : refused) entries_[write.extent.id].state = State::kReserved;
  }
  io_errors_ += refused.size();
  for (const QueuedWrite& write : refused) write.done(status);
  MutexLock lock(mu_);
  unsettled_ -= refused.size();
  settled_cv_.NotifyAll();
}

std::vector<DiskTier::Impl::Resident> DiskTier::Impl::ResidentsOf(uint32_t segment) {
  std::vector<Resident> residents;
  for (const uint64_t id : map_.segment(segment).ids) {
    const auto it = entries_.find(id);
    if (it == entries_.end() || it->second.state != State::kWritten ||
        it->second.place.segment != segment) {
      continue;
    }
    residents.push_back({id, it->second.place, it->second.length, it->second.hash});
  }
  return residents;
}

bool DiskTier::Impl::MoveOut(uint32_t segment) {
  std::vector<Resident> residents;
  uint64_t before;
  {
    MutexLock lock(mu_);
    map_.Hold(segment);
    residents = ResidentsOf(segment);
    before = moved_bytes_;
  }
  bool moving = true;
  for (size_t begin = 0; moving && begin < residents.size();) {
    size_t end = begin;
    uint64_t bytes = 0;
    while (end < residents.size() &&
           (end == begin || bytes + residents[end].length <= kMoveBytes)) {
      bytes += residents[end++].length;
    }
    moving = MoveSome(std::span(residents).subspan(begin, end - begin));
    begin = end;
  }
  // Before the segment is used again, a power loss may not bring back records that say that it
  // holds what was moved.
  const Status recorded = Flush(Duration::max(), nullptr);
  MutexLock lock(mu_);
  map_.Unhold(segment);
  // Also when all were released meanwhile.
  return recorded.ok() && (moved_bytes_ > before || map_.segment(segment).live_pages == 0);
}

bool DiskTier::Impl::MoveSome(std::span<const Resident> residents) {
  std::vector<disk::PageBuffer> buffers;
  Join reads(residents.size());
  for (size_t i = 0; i < residents.size(); ++i) {
    const Resident& r = residents[i];
    buffers.emplace_back(r.length);
    if (buffers.back().data() == nullptr) {
      reads.Callback(i)(
          Errorf(StatusCode::kResourceExhausted, "disk tier: no memory for a buffer"));
      continue;
    }
    const Result<disk::FileRef> file = files_.Use(r.place.segment);
    if (!file.ok()) {
      reads.Callback(i)(file.status());
      continue;
    }
    auto* const io = disk::FullIo::NewRead((*file)->fd(), OffsetOf(r.place));
    io->AddDestination({buffers[i].data(), r.length});
    io->Start(reader(r.id),
              [file = *file, done = reads.Callback(i)](Status status) { done(std::move(status)); });
  }
  std::vector<Status> read = reads.Wait();

  std::vector<Placed> moved;
  std::vector<size_t> buffer_of;
  for (size_t i = 0; i < residents.size(); ++i) {
    const Resident& r = residents[i];
    if (read[i].ok() && Xxh3({buffers[i].data(), r.length}) != r.hash) {
      read[i] = Errorf(StatusCode::kDataLoss, "hash is wrong");
    }
    if (read[i].code() == StatusCode::kDataLoss) ReportDamage(r, read[i]);
    // Damaged bytes move as they are, if their owner keeps them: they still fail their hash.
    if (!read[i].ok() && read[i].code() != StatusCode::kDataLoss) continue;
    auto record = store_->RecordOf(r.id);
    if (!record.ok()) continue;  // Released and forgotten.
    MutexLock lock(mu_);
    const auto it = entries_.find(r.id);
    if (it == entries_.end() || it->second.place != r.place) continue;
    const auto place = map_.Allocate(disk::ValueFileMap::Stream::kMoved, r.id, r.length,
                                     /*last=*/true, SteadyClock::Get().Now());
    if (!place) break;
    Placed p;
    p.stored = {.id = r.id,
                .place = *place,
                .length = r.length,
                .order = map_.segment(place->segment).order,
                .hash = r.hash,
                .record = {}};
    p.moved = true;
    p.from = r.place;
    p.record_copy = *std::move(record);
    moved.push_back(std::move(p));
    buffer_of.push_back(i);
  }
  const std::vector<Status> written = WriteMoved(moved, buffers, buffer_of);
  size_t done = 0;
  {
    MutexLock lock(mu_);
    for (size_t i = 0; i < moved.size(); ++i) {
      if (!written[i].ok()) {
        map_.Settle(moved[i].stored.place, moved[i].stored.length, /*lives=*/false);
        ++io_errors_;
        continue;
      }
      placed_.push_back(std::move(moved[i]));
      ++changes_;
      ++done;
    }
  }
  records_cv_.NotifyOne();
  return done > 0 || residents.empty();
}

std::vector<Status> DiskTier::Impl::WriteMoved(std::span<const Placed> moved,
                                               std::span<const disk::PageBuffer> buffers,
                                               std::span<const size_t> buffer_of) {
  if (moved.empty()) return {};
  Join writes(moved.size());
  for (size_t i = 0; i < moved.size(); ++i) {
    const disk::StoredExtent& stored = moved[i].stored;
    const Result<disk::FileRef> file = files_.Use(stored.place.segment);
    if (!file.ok()) {
      writes.Callback(i)(file.status());
      continue;
    }
    auto* const io = disk::FullIo::NewWrite((*file)->fd(), OffsetOf(stored.place));
    io->AddSource({buffers[buffer_of[i]].data(), stored.length});
    io->Start(writer_.get(), [file = *file, done = writes.Callback(i)](Status status) {
      done(std::move(status));
    });
  }
  std::vector<Status> written = writes.Wait();
  // The record at the old place is replaced, so the bytes at the new one must be there for good.
  absl::flat_hash_set<uint32_t> targets;
  for (const Placed& p : moved) targets.insert(p.stored.place.segment);
  for (const uint32_t target : targets) {
    const Status synced = files_.Sync(target);
    for (size_t i = 0; i < moved.size(); ++i) {
      if (!synced.ok() && moved[i].stored.place.segment == target) written[i] = synced;
    }
  }
  return written;
}

VictimGroup DiskTier::Impl::NextVictims() {
  VictimGroup group;
  std::vector<Resident> residents;
  {
    MutexLock lock(mu_);
    const auto promised = static_cast<double>(map_.draining_bytes());
    const auto segment = map_.TakeVictim();
    if (!segment) return group;
    if (!starved_ && keep_credit_ > promised) {
      group.keep_bytes = static_cast<uint64_t>(keep_credit_ - promised);
    }
    residents = ResidentsOf(*segment);
    const auto age = SteadyClock::Get().Now() - map_.segment(*segment).sealed_at;
    for (const Resident& r : residents) group.members.push_back({{r.id, r.length}, {}, age});
  }
  // An owner that gets no record does not know what it is, and leaves it: it is moved.
  for (VictimGroup::Member& member : group.members) {
    if (auto record = store_->RecordOf(member.extent.id); record.ok())
      member.record = *std::move(record);
  }
  return group;
}

void DiskTier::Impl::SetDamageListener(DamageListener listener) {
  MutexLock lock(listener_mu_);
  listener_ = std::move(listener);
}

void DiskTier::Impl::ReportDamage(const Resident& resident, const Status& status) {
  ++scrub_failures_;
  log::Warn("disk_tier_damage", {{"extent", log::Num(resident.id)}, {"error", Message(status)}});
  const auto record = store_->RecordOf(resident.id);
  if (!record.ok()) return;
  MutexLock lock(listener_mu_);
  if (listener_) listener_(Extent{resident.id, resident.length}, *record);
}

Status DiskTier::Impl::ReadResident(const Resident& resident, std::span<std::byte> bytes) {
  Join read(1);
  CAIRN_ASSIGN_OR_RETURN(const disk::FileRef file, files_.Use(resident.place.segment));
  auto* const io = disk::FullIo::NewRead(file->fd(), OffsetOf(resident.place));
  io->AddDestination(bytes);
  io->Start(reader(resident.id), read.Callback(0));
  CAIRN_RETURN_IF_ERROR(read.Wait()[0]);
  if (Xxh3(bytes) == resident.hash) return OkStatus();
  return Errorf(StatusCode::kDataLoss, "hash is wrong");
}

void DiskTier::Impl::ScrubLoop() {
  pthread_setname_np(pthread_self(), "disk-scrub");
  std::pair<uint32_t, uint32_t> cursor{0, 0};
  TimePoint next = SteadyClock::Get().Now();
  for (;;) {
    {
      MutexLock lock(mu_);
      scrub_cv_.WaitUntil(mu_, next,
                          [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; });
      if (stopping_) return;
    }
    const uint64_t bytes = ScrubOne(&cursor);
    const TimePoint now = SteadyClock::Get().Now();
    next = bytes == 0 ? now + kScrubPause
                      : std::max(next, now - kScrubPause) +
                            std::chrono::nanoseconds(static_cast<int64_t>(
                                static_cast<double>(bytes) * 1e9 /
                                static_cast<double>(options.scrub_bytes_per_second)));
  }
}

uint64_t DiskTier::Impl::ScrubOne(std::pair<uint32_t, uint32_t>* cursor) {
  Resident resident{};
  {
    MutexLock lock(mu_);
    const auto find = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      for (; cursor->first < map_.size(); ++cursor->first, cursor->second = 0) {
        const auto& ids = map_.segment(cursor->first).ids;
        while (cursor->second < ids.size()) {
          const uint64_t id = ids[cursor->second++];
          const auto it = entries_.find(id);
          if (it == entries_.end() || it->second.state != State::kWritten ||
              it->second.place.segment != cursor->first) {
            continue;
          }
          resident = {id, it->second.place, it->second.length, it->second.hash};
          return true;
        }
      }
      *cursor = {0, 0};
      return false;
    };
    if (!find()) return 0;
    map_.Hold(resident.place.segment);
  }
  disk::PageBuffer buffer(resident.length);
  const Status status =
      buffer.data() == nullptr
          ? Errorf(StatusCode::kResourceExhausted, "disk tier: no memory for a buffer")
          : ReadResident(resident, {buffer.data(), resident.length});
  if (status.ok()) scrubbed_bytes_ += resident.length;
  if (status.code() == StatusCode::kDataLoss) ReportDamage(resident, status);
  MutexLock lock(mu_);
  map_.Unhold(resident.place.segment);
  return resident.length;
}

}  // namespace cairn::cache
