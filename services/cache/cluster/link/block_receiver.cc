#include "services/cache/cluster/link/block_receiver.h"

#include <algorithm>
#include <utility>

#include "common/log/log.h"

namespace cairn::cache {
namespace {

MoveFailure FailureOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kDeadlineExceeded:
      return MoveFailure::kDeadline;
    case StatusCode::kResourceExhausted:
      return MoveFailure::kNoRoom;
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kPermissionDenied:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kUnimplemented:
      return MoveFailure::kRefused;
    default:
      return MoveFailure::kBroken;
  }
}

}  // namespace

// The copies of one block to the host.
struct BlockReceiver::Copies {
  std::shared_ptr<BlockReceiver> owner;
  std::string member;
  ExchangeBuffer::Room room;
  FetchDone done;
  Mutex mu;
  size_t left ABSL_GUARDED_BY(mu) = 0;
  Status status ABSL_GUARDED_BY(mu);
};

BlockReceiver::BlockReceiver(const Options& options, std::shared_ptr<ExchangeBuffer> buffer,
                             DeviceTier* tier, std::shared_ptr<link::LinkReader> reader,
                             const link::PeerHistory* history, const Clock* clock)
    : options_(options),
      buffer_(std::move(buffer)),
      tier_(*tier),
      reader_(std::move(reader)),
      history_(*history),
      clock_(*clock) {}

bool BlockReceiver::MayFetch(const std::string& member) const {
  if (tier_.losses() > 0 || !history_.MayCall(member).ok()) return false;
  const bool ready = reader_->Ready(member);
  const TimePoint now = clock_.Now();
  {
    MutexLock lock(mu_);
    if (stopped_) return false;
    Member& known = members_[member];
    if (ready) {
      if (known.works) return true;
      if (now < known.next_try) return false;
      // The answer to this one comes within its timeout.
      known.next_try = now + std::max(options_.timeout, options_.pause);
      return true;
    }
    if (now < known.next_making) return false;
    known.next_making = now + options_.pause;
  }
  reader_->Prepare(member);
  return false;
}

void BlockReceiver::Fetch(const std::string& member, const LentBlock& block,
                          std::vector<std::span<std::byte>> rooms, TimePoint deadline,
                          FetchDone done) {
  bool stopped = false;
  {
    MutexLock lock(mu_);
    if (!stopped_) ++under_way_;
    stopped = stopped_;
  }
  if (stopped) return done(Errorf(StatusCode::kUnavailable, "links are stopped"));
  const LentPlace& place = block.place;
  const Result<ExchangeBuffer::Room> room =
      buffer_->Take(ExchangeBuffer::Half::kIn, std::max<uint64_t>(1, place.bytes));
  if (!room.ok()) return Fail(member, MoveFailure::kNoRoom, room.status(), done);
  const TimePoint now = clock_.Now();
  const Duration half = deadline > now ? (deadline - now) / 2 : Duration(0);
  const link::Plan plan{.pieces = {{.source = place.memory,
                                    .source_offset = place.offset,
                                    .target = options_.memory,
                                    .target_offset = room->offset,
                                    .bytes = place.bytes}}};
  reader_->Fetch(member, plan, room->keep, now + std::min(half, options_.timeout),
                 [self = shared_from_this(), member, block, room = *room, rooms = std::move(rooms),
                  done = std::move(done)](const Status& moved) {
                   if (!moved.ok()) return self->Fail(member, FailureOf(moved), moved, done);
                   self->Moved(member, block, room, rooms, done);
                 });
}

void BlockReceiver::Moved(const std::string& member, const LentBlock& block,
                          const ExchangeBuffer::Room& room, std::vector<std::span<std::byte>> rooms,
                          const FetchDone& done) {
  auto copies = std::make_shared<Copies>();
  copies->owner = shared_from_this();
  copies->member = member;
  copies->room = room;
  copies->done = done;
  {
    MutexLock lock(copies->mu);
    copies->left = rooms.size();
  }
  const std::vector<uint64_t> offsets = LentOffsets(block.block);
  for (size_t i = 0; i < rooms.size(); ++i) {
    tier_.CopyToHost(options_.pool, buffer_->address() + room.offset + offsets[i], rooms[i],
                     [copies](const Status& copied) {
                       Status status;
                       {
                         MutexLock lock(copies->mu);
                         if (!copied.ok()) copies->status = copied;
                         if (--copies->left > 0) return;
                         status = copies->status;
                       }
                       copies->owner->Copied(copies->member, copies->room, status, copies->done);
                     });
  }
}

void BlockReceiver::Copied(const std::string& member, const ExchangeBuffer::Room& room,
                           const Status& copied, const FetchDone& done) {
  if (!copied.ok()) return Fail(member, MoveFailure::kCopy, copied, done);
  {
    MutexLock lock(mu_);
    members_[member].works = true;
    ++counts_.moved;
    counts_.moved_bytes += room.bytes;
  }
  End(copied, done);
}

void BlockReceiver::Fail(const std::string& member, MoveFailure why, const Status& status,
                         const FetchDone& done) {
  {
    MutexLock lock(mu_);
    ++counts_.failures[static_cast<size_t>(why)];
    // A full buffer says nothing of the member.
    if (why != MoveFailure::kNoRoom) Rest(member);
  }
  if (why != MoveFailure::kNoRoom) {
    log::Warn("link_move_failed", {{"member", member},
                                   {"reason", kMoveFailures[static_cast<size_t>(why)]},
                                   {"error", Message(status)}});
  }
  End(status, done);
}

void BlockReceiver::NoteWrong(const std::string& member, const Status& why) {
  {
    MutexLock lock(mu_);
    Rest(member);
  }
  log::Warn("link_moved_wrong_bytes", {{"member", member}, {"error", Message(why)}});
}

void BlockReceiver::Rest(const std::string& member) {
  Member& known = members_[member];
  known.works = false;
  known.next_try = clock_.Now() + options_.pause;
}

void BlockReceiver::End(const Status& status, const FetchDone& done) {
  done(status);
  MutexLock lock(mu_);
  if (--under_way_ == 0) ended_.NotifyAll();
}

void BlockReceiver::Stop() {
  MutexLock lock(mu_);
  stopped_ = true;
  ended_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return under_way_ == 0; });
}

BlockReceiver::Counts BlockReceiver::counts() const {
  MutexLock lock(mu_);
  return counts_;
}

}  // namespace cairn::cache
