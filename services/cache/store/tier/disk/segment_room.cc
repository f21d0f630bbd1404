#include "services/cache/store/tier/disk/segment_room.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace cairn::cache::disk {
namespace {

constexpr uint64_t kMoveBytes = 8 << 20;          // In memory at a time.
constexpr std::chrono::milliseconds kAgain{200};  // After a failure.

}  // namespace

SegmentRoom::SegmentRoom(Parts parts, const StartLoop& start) : parts_(std::move(parts)) {
  loop_ = start("disk-room", [this] { Run(); });
}

std::string SegmentRoom::SizeKey(uint32_t segment) { return fmt::format("f/{:06}", segment); }

void SegmentRoom::Want() {
  MutexLock lock(mu_);
  wanted_ = true;
  changed_.NotifyAll();
}

void SegmentRoom::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  loop_.reset();
}

void SegmentRoom::Run() {
  for (;;) {
    {
      MutexLock lock(mu_);
      changed_.WaitUntil(mu_, parts_.io.clock, DueAt(),
                         [this]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || wanted_; });
      if (stopping_) return;
      wanted_ = false;
    }
    // Writes that find no place want room. They do not wake this loop, which has just looked: it
    // kept a processor busy until a place was free.
    for (bool more = true; more;) {
      wants_file_ = false;
      more = Step();
      more |= parts_.start_writes();
      MutexLock lock(mu_);
      if (stopping_) return;
    }
  }
}

TimePoint SegmentRoom::DueAt() const {
  return std::min(wants_file_ ? make_again_ : TimePoint::max(),
                  moved_out_.empty() ? TimePoint::max() : end_again_);
}

Status SegmentRoom::WhyNoneComesFree() const {
  return moved_out_.empty() ? parts_.records.failure() : moves_failure_;
}

bool SegmentRoom::Step() {
  if (!moved_out_.empty() && parts_.io.clock.Now() >= end_again_) EndMoves();
  const RoomStep step = parts_.table.NextRoomStep(MayMake(), /*leaving=*/true);
  if (Take(step)) return true;
  // Extents that leave may find no room. Then those that wait need it more.
  return step.leaving && Take(parts_.table.NextRoomStep(MayMake(), /*leaving=*/false));
}

bool SegmentRoom::Take(const RoomStep& step) {
  wants_file_ |= step.no_file;
  switch (step.what) {
    case RoomStep::What::kNothing:
      // Room that comes when records are gone never came once the database failed. Neither the
      // writes that waited for it ended, nor the node.
      if (!step.waiting || WhyNoneComesFree().ok()) return false;
      break;
    case RoomStep::What::kDelete:
      parts_.files.Delete(step.segment);
      (void)parts_.store.DeleteSmall(SizeKey(step.segment));  // The next file writes it again.
      return true;
    case RoomStep::What::kMake:
      return MakeFile(step.segment) || step.waiting;
    case RoomStep::What::kMoveOut:
      if (MoveOut(step.segment)) return true;
      break;
    case RoomStep::What::kRefuse:
      break;
  }
  const Status none = WhyNoneComesFree();
  if (parts_.table.Starve(step, !none.ok())) {
    parts_.refuse(step.no_file ? make_failure_
                  : !none.ok() ? none
                               : Errorf(StatusCode::kResourceExhausted,
                                        "disk tier: no segment file is free, and none can be "
                                        "emptied"));
  }
  return false;
}

bool SegmentRoom::MakeFile(uint32_t segment) {
  const Status made = TryMakeFile(segment);
  if (made.ok()) {
    parts_.table.FileMade(segment);
  } else {
    make_failure_ = made;
    make_again_ = parts_.io.clock.Now() + kAgain;
  }
  return made.ok();
}

Status SegmentRoom::TryMakeFile(uint32_t segment) {
  const uint64_t bytes = parts_.table.segment_bytes();
  const uint64_t free = parts_.files.FreeBytes();
  if (free < bytes || free - bytes < parts_.min_free_bytes) {
    return Errorf(StatusCode::kResourceExhausted,
                  "disk.path: the file system of '{}' has {} bytes free, expected {} for another "
                  "value file and disk.min_free, {}, more",
                  parts_.files.folder(), free, bytes, parts_.min_free_bytes);
  }
  // First its size: a file that a power loss cut is filled up again.
  CAIRN_RETURN_IF_ERROR(parts_.store.PutSmall(
      SizeKey(segment), {reinterpret_cast<const char*>(&bytes), sizeof(bytes)}));
  CAIRN_RETURN_IF_ERROR(parts_.files.Make(segment, bytes));
  return parts_.files.SyncNames();
}

bool SegmentRoom::MoveOut(uint32_t segment) {
  const std::vector<Resident> residents = parts_.table.BeginMove(segment);
  const uint64_t before = parts_.table.moved_bytes();
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
  const bool moved = parts_.table.moved_bytes() > before;
  moved_out_.push_back(segment);
  // Also when all were released meanwhile.
  const bool empty = EndMoves();
  return moves_failure_.ok() && (moved || empty);
}

bool SegmentRoom::EndMoves() {
  // Before a segment is used again, a power loss may not bring back records that say that it holds
  // what was moved. A segment that was let go of after a sync that failed was written over, and
  // the power loss brought them back.
  moves_failure_ = parts_.records.WaitWritten({});
  if (moves_failure_.ok()) moves_failure_ = parts_.syncs.Sync({});
  if (!moves_failure_.ok()) {
    end_again_ = parts_.io.clock.Now() + kAgain;
    return false;
  }
  bool empty = false;
  for (const uint32_t segment : std::exchange(moved_out_, {})) {
    empty |= parts_.table.EndMove(segment);
  }
  return empty;
}

bool SegmentRoom::MoveSome(std::span<const Resident> residents) {
  std::vector<PageBuffer> buffers;
  const std::vector<Status> read = parts_.io.Read(residents, &buffers);
  std::vector<PlacedExtent> moved;
  std::vector<const PageBuffer*> sources;
  for (size_t i = 0; i < residents.size(); ++i) {
    const Resident& r = residents[i];
    if (read[i].code() == StatusCode::kDataLoss) parts_.damage.Report(r, read[i]);
    // Damaged bytes move as they are, if their owner keeps them: they still fail their hash. Those
    // that could not be read stay, because the device may give them next time.
    if (buffers[i].data() == nullptr) continue;
    auto record = parts_.store.RecordOf(r.id);
    if (!record.ok()) continue;  // Released and forgotten.
    auto placed = parts_.table.PlaceMoved(r, *std::move(record), parts_.io.clock.Now());
    if (!placed.ok()) continue;
    if (!*placed) break;
    moved.push_back(**std::move(placed));
    sources.push_back(&buffers[i]);
  }
  const std::vector<Status> written = WriteMoved(moved, sources);
  std::vector<PlacedExtent> done;
  for (size_t i = 0; i < moved.size(); ++i) {
    if (written[i].ok()) {
      done.push_back(std::move(moved[i]));
    } else {
      parts_.table.MoveFailed(moved[i]);
      ++failures_;
    }
  }
  const bool some = !done.empty();
  if (some) parts_.records.Add(std::move(done));
  return some || residents.empty();
}

std::vector<Status> SegmentRoom::WriteMoved(std::span<const PlacedExtent> moved,
                                            std::span<const PageBuffer* const> buffers) {
  std::vector<Status> written = parts_.io.Write(moved, buffers);
  // The record at the old place is replaced, so the bytes at the new one must be there for good.
  std::set<uint32_t> targets;
  for (const PlacedExtent& p : moved) targets.insert(p.stored.place.segment);
  for (const uint32_t target : targets) {
    const Status synced = parts_.files.Sync(target);
    for (size_t i = 0; i < moved.size(); ++i) {
      if (!synced.ok() && moved[i].stored.place.segment == target) written[i] = synced;
    }
  }
  return written;
}

}  // namespace cairn::cache::disk
