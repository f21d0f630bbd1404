#include "services/cache/cluster/link/lent_blocks.h"

#include <utility>
#include <vector>

namespace cairn::cache {

LentBlocks::LentBlocks(const Options& options, std::shared_ptr<ExchangeBuffer> buffer,
                       DeviceTier* tier, Timers* timers, const Clock* clock)
    : options_(options),
      buffer_(std::move(buffer)),
      tier_(*tier),
      timers_(*timers),
      clock_(*clock) {}

void LentBlocks::Lend(const std::string& member, DeviceBlock block, LendDone done) {
  const std::vector<uint64_t> offsets = LentOffsets(block.block);
  Result<ExchangeBuffer::Room> room = buffer_->Take(ExchangeBuffer::Half::kOut, offsets.back());
  if (!room.ok()) return Refuse(done, room.status());
  std::vector<uint64_t> addresses;
  for (size_t i = 0; i < block.extents.size(); ++i) {
    addresses.push_back(buffer_->address() + room->offset + offsets[i]);
  }
  const std::vector<Extent> extents = block.extents;
  tier_.CopyOut(
      options_.pool, extents, addresses,
      [self = shared_from_this(), member, room = *room, hold = std::move(block.hold),
       done = std::move(done)](const Status& copied) {
        if (!copied.ok()) return self->Refuse(done, copied);
        if (!self->Offer(member, room)) {
          return self->Refuse(done, Errorf(StatusCode::kUnavailable, "links are stopped"));
        }
        done(
            LentPlace{.memory = self->options_.memory, .offset = room.offset, .bytes = room.bytes});
      });
}

void LentBlocks::Refuse(const LendDone& done, const Status& why) {
  {
    MutexLock lock(mu_);
    ++counts_.refused;
  }
  done(why);
}

bool LentBlocks::Offer(const std::string& member, const ExchangeBuffer::Room& room) {
  MutexLock lock(mu_);
  if (stopped_) return false;
  ++counts_.lent;
  // The room is this block's alone until it is let go of, so its offset names it.
  Lent& lent = lent_[room.offset];
  lent.member = member;
  lent.room = room;
  lent.timer = timers_.At(clock_.Now() + options_.life,
                          [self = shared_from_this(), offset = room.offset,
                           keep = std::weak_ptr(room.keep)] { self->Expire(offset, keep); });
  return true;
}

void LentBlocks::Expire(uint64_t offset, const std::weak_ptr<void>& keep) {
  ExchangeBuffer::Room room;  // Let go of without the lock.
  MutexLock lock(mu_);
  const auto it = lent_.find(offset);
  // The place may be another block's by now.
  if (it == lent_.end() || it->second.room.keep != keep.lock()) return;
  room = std::move(it->second.room);
  lent_.erase(it);
  ++counts_.expired;
}

Result<std::shared_ptr<void>> LentBlocks::Grant(const std::string& member, const link::Plan& plan) {
  if (plan.pieces.size() != 1) {
    return InvalidArgument("pieces: got {}, expected 1: a block is lent as a whole",
                           plan.pieces.size());
  }
  const link::Piece& piece = plan.pieces.front();
  Timers::Id timer = 0;
  std::shared_ptr<void> keep;
  {
    MutexLock lock(mu_);
    const auto it = lent_.find(piece.source_offset);
    if (piece.source != options_.memory || it == lent_.end() || it->second.member != member ||
        it->second.room.bytes != piece.bytes) {
      return Errorf(StatusCode::kNotFound,
                    "no block is lent to '{}': got {} bytes at {} of memory {}, expected what was "
                    "lent in the last {} s",
                    member, piece.bytes, piece.source_offset, piece.source, Seconds(options_.life));
    }
    timer = it->second.timer;
    keep = std::move(it->second.room.keep);
    lent_.erase(it);
    ++counts_.granted;
    counts_.granted_bytes += piece.bytes;
  }
  timers_.Cancel(timer);
  return keep;
}

void LentBlocks::Stop() {
  std::map<uint64_t, Lent> lent;
  {
    MutexLock lock(mu_);
    stopped_ = true;
    lent.swap(lent_);
  }
  for (const auto& [offset, block] : lent) timers_.Cancel(block.timer);
}

LentBlocks::Counts LentBlocks::counts() const {
  MutexLock lock(mu_);
  return counts_;
}

}  // namespace cairn::cache
