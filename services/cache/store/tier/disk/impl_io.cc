// Writes, reads, and the records of what was written.

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "cairn/common/hash.h"
#include "common/log/log.h"
#include "services/cache/store/tier/disk/impl.h"

namespace cairn::cache {
namespace {

// Small extents that lie behind each other go in one request.
constexpr uint64_t kGroupBytes = 1 << 20;
constexpr size_t kGroupExtents = 64;
// Where enough waits for a full group, it is handed to the backend, which keeps `queue_depth` of
// them at the device, before the device is free for it: so that gets the next one as soon as one
// ends, and not after what follows the end here. Less waits for more to go with it.
constexpr size_t kAhead = 2;
constexpr std::chrono::milliseconds kRetry{200};
// Of what is written, so much may be written a second time because the owner wants to keep it:
// amplification stays below 1.05.
constexpr double kKeepShare = 0.04;
constexpr uint32_t kRangeGrain = Tier::kRangeGrain;
constexpr uint32_t kHeadBytes = Tier::kHeadBytes;

// Tells the first bytes of an extent from those of another one, by accident but in one of 2^24
// cases. Never 0.
uint32_t HeadOf(std::span<const std::byte> bytes) {
  const uint64_t hash = Xxh3(bytes.first(std::min<size_t>(bytes.size(), kHeadBytes)));
  return std::max<uint32_t>(1, static_cast<uint32_t>(hash >> 40));
}

}  // namespace

void DiskTier::Impl::Write(const Extent& extent, std::string_view record,
                           std::span<const std::byte> source, IoCallback done) {
  if (source.size() != extent.length) {
    return done(
        InvalidArgument("field 'source': got {} bytes, expected {}", source.size(), extent.length));
  }
  const uint64_t hash = Xxh3(source);
  const uint32_t head = HeadOf(source);
  Status refused = OkStatus();
  {
    MutexLock lock(mu_);
    const auto it = entries_.find(extent.id);
    if (!recovered_) {
      refused = Errorf(StatusCode::kFailedPrecondition, "disk tier: call Recover before Write");
    } else if (it == entries_.end() || it->second.length != extent.length ||
               it->second.state != State::kReserved) {
      refused = Errorf(StatusCode::kFailedPrecondition,
                       "disk tier: extent {} is not reserved, or was written before", extent.id);
    } else if (queue_.size() >= options.queue_capacity) {
      refused = Errorf(StatusCode::kResourceExhausted,
                       "disk tier: the write queue is full ({} wait)", queue_.size());
    } else {
      it->second.state = State::kWriting;
      it->second.head = head;
      ++unsettled_;
      queue_.push_back({extent, record, source, hash, std::move(done), {}});
    }
  }
  // NOLINTNEXTLINE(bugprone-use-after-move): moved only when nothing was refused.
  if (!refused.ok()) return done(refused);
  PumpWrites();
}

bool DiskTier::Impl::FullGroupWaits() const {
  uint64_t bytes = 0;
  for (size_t i = 0; i < std::min(queue_.size(), kGroupExtents); ++i)
    bytes += queue_[i].extent.length;
  return bytes >= kGroupBytes || queue_.size() >= kGroupExtents;
}

// Starts what may be started. Any thread.
void DiskTier::Impl::PumpWrites() {
  for (;;) {
    std::vector<QueuedWrite> group;
    {
      MutexLock lock(mu_);
      if (writes_ >= options.queue_depth &&
          (writes_ >= kAhead * options.queue_depth || !FullGroupWaits()))
        return;
      uint64_t bytes = 0;
      while (!queue_.empty() && group.size() < kGroupExtents) {
        QueuedWrite& write = queue_.front();
        if (!group.empty() &&
            (bytes + write.extent.length > kGroupBytes ||
             !map_.Continues(disk::ValueFileMap::Stream::kFresh, write.extent.length))) {
          break;
        }
        // The last free segment is for moves, unless more files may be made.
        const auto place =
            map_.Allocate(disk::ValueFileMap::Stream::kFresh, write.extent.id, write.extent.length,
                          /*last=*/map_.NextAbsent().has_value(), SteadyClock::Get().Now());
        if (!place) {
          WantRoom();
          break;
        }
        bytes += write.extent.length;
        write.place = *place;
        group.push_back(std::move(write));
        queue_.pop_front();
      }
      if (group.empty()) return;
      ++writes_;
      if (map_.NeedsSpare(disk::ValueFileMap::Stream::kFresh)) WantRoom();
    }
    const disk::Place place = group.front().place;
    const Result<disk::FileRef> file = files_.Use(place.segment);
    if (!file.ok()) {
      GiveUpPlaces(group);
      TellFailed(group, file.status());
      continue;
    }
    auto* const io = disk::FullIo::NewWrite((*file)->fd(), OffsetOf(place));
    for (const QueuedWrite& write : group) io->AddSource(write.source);
    io->Start(
        writer_.get(),
        [this, file = *file, shared = std::make_shared<std::vector<QueuedWrite>>(std::move(group))](
            const Status& status) { OnWritten(std::move(*shared), status); });
  }
}

void DiskTier::Impl::OnWritten(std::vector<QueuedWrite> group, const Status& status) {
  if (!status.ok()) {
    GiveUpPlaces(group);
    PumpWrites();
    return TellFailed(group, status);
  }
  {
    MutexLock lock(mu_);
    --writes_;
    unsynced_.insert(group.front().place.segment);
    for (QueuedWrite& write : group) {
      Placed placed;
      placed.stored = {.id = write.extent.id,
                       .place = write.place,
                       .length = write.extent.length,
                       .order = map_.segment(write.place.segment).order,
                       .hash = write.hash,
                       .record = write.record};
      placed.done = std::move(write.done);
      placed_.push_back(std::move(placed));
      ++changes_;
      waiting_bytes_ += write.extent.length;
    }
  }
  PumpWrites();
  records_cv_.NotifyOne();
}

void DiskTier::Impl::GiveUpPlaces(const std::vector<QueuedWrite>& group) {
  MutexLock lock(mu_);
  --writes_;
  for (const QueuedWrite& write : group) {
    entries_[write.extent.id].state = State::kReserved;
    map_.Settle(write.place, write.extent.length, /*lives=*/false);
  }
}

void DiskTier::Impl::TellFailed(const std::vector<QueuedWrite>& group, const Status& status) {
  ++io_errors_;
  for (const QueuedWrite& write : group) write.done(status);
  MutexLock lock(mu_);
  unsettled_ -= group.size();
  settled_cv_.NotifyAll();
}

void DiskTier::Impl::EarnCredit(double bytes) {
  // Neither saved up in quiet times nor owed for long after much was moved for other reasons.
  const double most = static_cast<double>(segment_bytes_) / 2;
  keep_credit_ = std::clamp(keep_credit_ + bytes, -most, most);
}

void DiskTier::Impl::RecordsLoop() {
  pthread_setname_np(pthread_self(), "disk-records");
  TimePoint again{};  // After a failure, what is to be forgotten waits.
  for (;;) {
    std::vector<Placed> placed;
    std::vector<Forgotten> forgotten;
    {
      MutexLock lock(mu_);
      const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stopping_ || !placed_.empty() ||
               (!forgotten_.empty() && SteadyClock::Get().Now() >= again);
      };
      while (!ready()) {
        if (forgotten_.empty()) {
          records_cv_.Wait(mu_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
            return stopping_ || !placed_.empty() || !forgotten_.empty();
          });
        } else {
          records_cv_.WaitUntil(mu_, again, ready);
        }
      }
      if (placed_.empty() && forgotten_.empty()) return;
      forgotten.swap(forgotten_);
      for (Placed& p : placed_) {
        const auto it = entries_.find(p.stored.id);
        if (p.moved && (it == entries_.end() || it->second.place != p.from)) {
          // Released since: its record must not come back.
          map_.Settle(p.stored.place, p.stored.length, /*lives=*/false);
          ++changes_done_;
          continue;
        }
        placed.push_back(std::move(p));
      }
      placed_.clear();
    }
    const Status status = ApplyRecords(forgotten, placed);
    again = status.ok() ? TimePoint{} : SteadyClock::Get().Now() + kRetry;
    SettleRecords(placed, forgotten, status);
    MutexLock lock(mu_);
    if (stopping_ && !status.ok()) return;
  }
}

Status DiskTier::Impl::ApplyRecords(std::span<const Forgotten> forgotten,
                                    std::span<const Placed> placed) {
  std::vector<uint64_t> ids;
  ids.reserve(forgotten.size());
  for (const Forgotten& f : forgotten) ids.push_back(f.id);
  std::vector<disk::StoredExtent> stored;
  stored.reserve(placed.size());
  for (const Placed& p : placed) {
    stored.push_back(p.stored);
    if (p.moved) stored.back().record = p.record_copy;
  }
  Status status = store_->Apply(ids, stored);
  if (status.ok() || directory.FreeBytes() < std::max<uint64_t>(options.min_free_bytes, 1))
    return status;
  // After a fault, the database refuses everything until it is asked to go on.
  if (!store_->Resume().ok()) return status;
  return store_->Apply(ids, stored);
}

void DiskTier::Impl::SettleRecords(const std::vector<Placed>& placed,
                                   const std::vector<Forgotten>& forgotten, const Status& status) {
  {
    MutexLock lock(mu_);
    changes_done_ += placed.size();
    if (status.ok()) {
      changes_done_ += forgotten.size();
      for (const Forgotten& f : forgotten) {
        if (f.segment != kNoSegment) map_.Unhold(f.segment);
      }
    } else {
      forgotten_.insert(forgotten_.begin(), forgotten.begin(), forgotten.end());
      ++failed_batches_;
      last_failure_ = status;
    }
    for (const Placed& p : placed) {
      const disk::StoredExtent& stored = p.stored;
      const auto it = entries_.find(stored.id);
      if (!p.moved) waiting_bytes_ -= stored.length;
      if (!status.ok()) {
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
        forgotten_.push_back({stored.id, stored.place.segment});
        ++changes_;
      }
    }
    if (map_.free() > 0) starved_ = false;
    if (!queue_.empty()) WantRoom();
    settled_cv_.NotifyAll();
  }
  if (!status.ok()) ++io_errors_;
  size_t writes = 0;
  for (const Placed& p : placed) {
    if (p.moved) continue;
    p.done(status);
    ++writes;
  }
  PumpWrites();
  MutexLock lock(mu_);
  unsettled_ -= writes;
  settled_cv_.NotifyAll();
}

Result<DiskTier::Impl::Found> DiskTier::Impl::BeginRead(const Extent& extent) {
  MutexLock lock(mu_);
  const auto it = entries_.find(extent.id);
  if (it == entries_.end() || it->second.state != State::kWritten ||
      it->second.length != extent.length) {
    return Errorf(StatusCode::kNotFound, "disk tier: extent {} holds nothing", extent.id);
  }
  if (reads_ >= options.queue_depth + options.queue_capacity) {
    return Errorf(StatusCode::kResourceExhausted, "disk tier: the read queue is full ({} wait)",
                  options.queue_capacity);
  }
  map_.Hold(it->second.place.segment);
  ++reads_;
  return Found{it->second.place, it->second.head, it->second.hash};
}

void DiskTier::Impl::Read(const Extent& extent, std::span<std::byte> destination, IoCallback done) {
  if (destination.size() != extent.length) {
    return done(InvalidArgument("field 'destination': got {} bytes, expected {}",
                                destination.size(), extent.length));
  }
  const Result<Found> found = BeginRead(extent);
  if (!found.ok()) return done(found.status());
  const disk::Place place = found->place;
  const Result<disk::FileRef> file = files_.Use(place.segment);
  if (!file.ok()) return EndRead(extent, place.segment, 0, 0, file.status(), done);
  auto* const io = disk::FullIo::NewRead((*file)->fd(), OffsetOf(place));
  io->AddDestination(destination);
  io->Start(reader(extent.id), [this, file = *file, extent, place, hash = found->hash, destination,
                                done = std::move(done)](Status status) {
    if (status.ok() && Xxh3(destination) != hash) {
      status = Errorf(StatusCode::kDataLoss, "disk tier: extent {}: hash is wrong", extent.id);
    }
    EndRead(extent, place.segment, destination.size(), status.ok() ? HeadOf(destination) : 0,
            std::move(status), done);
  });
}

void DiskTier::Impl::ReadRange(const Extent& extent, uint64_t offset,
                               std::span<std::byte> destination, IoCallback done) {
  if (offset % kRangeGrain != 0 || offset > extent.length || destination.empty() ||
      destination.size() > extent.length - offset) {
    return done(InvalidArgument(
        "field 'offset': got {} bytes from {} on, expected a multiple of {} and an end within the "
        "extent's {} bytes",
        destination.size(), offset, kRangeGrain, extent.length));
  }
  const Result<Found> found = BeginRead(extent);
  if (!found.ok()) return done(found.status());
  const disk::Place place = found->place;
  const bool has_head = offset == 0 && destination.size() >= kHeadBytes;
  const Result<disk::FileRef> file = files_.Use(place.segment);
  Status refused = file.status();
  if (has_head && found->head == 0) {
    refused = Errorf(StatusCode::kFailedPrecondition, "disk tier: extent {} was not read whole yet",
                     extent.id);
  }
  if (!refused.ok()) return EndRead(extent, place.segment, 0, 0, std::move(refused), done);
  auto* const io = disk::FullIo::NewRead((*file)->fd(), OffsetOf(place) + offset);
  io->AddDestination(destination);
  io->Start(reader(extent.id), [this, file = *file, extent, place, head = found->head, has_head,
                                destination, done = std::move(done)](Status status) {
    if (status.ok() && has_head && HeadOf(destination) != head) {
      status = Errorf(StatusCode::kDataLoss, "disk tier: extent {}: other bytes lie in its place",
                      extent.id);
    }
    EndRead(extent, place.segment, destination.size(), 0, std::move(status), done);
  });
}

void DiskTier::Impl::EndRead(const Extent& extent, uint32_t segment, uint64_t bytes, uint32_t head,
                             Status status, const IoCallback& done) {
  if (status.ok()) {
    read_bytes_ += bytes;
  } else if (status.code() != StatusCode::kFailedPrecondition) {
    ++io_errors_;
    if (status.code() == StatusCode::kDataLoss) ++corrupt_reads_;
  }
  {
    MutexLock lock(mu_);
    map_.Unhold(segment);
    if (head != 0) {
      const auto it = entries_.find(extent.id);
      if (it != entries_.end()) it->second.head = head;
    }
    if (!queue_.empty()) WantRoom();
  }
  done(std::move(status));
  MutexLock lock(mu_);
  if (--reads_ == 0) settled_cv_.NotifyAll();
}

}  // namespace cairn::cache
