#include "services/cache/store/engine/arriving_block.h"

#include "common/log/log.h"
#include "services/cache/store/block/part_grid.h"

namespace cairn::cache {
namespace {

MissReason ReasonOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kDeadlineExceeded:
      return MissReason::kDeadline;
    case StatusCode::kDataLoss:
    case StatusCode::kInvalidArgument:
      return MissReason::kCorrupt;
    case StatusCode::kResourceExhausted:
      return MissReason::kRefused;
    default:
      return MissReason::kAbsent;
  }
}

}  // namespace

Status ArrivingBlock::CheckParts(const SourceBlock& block) const {
  const PartForm& form = ns->storage().in_tier[TierKind::kHost];
  if (block.parts.empty() || block.parts.size() > SourceBlock::kMaxParts) {
    return InvalidArgument("field 'parts': got {}, expected 1 to {}", block.parts.size(),
                           SourceBlock::kMaxParts);
  }
  std::vector<format::PartRect> rects;
  for (const SourceBlock::Part& part : block.parts) {
    const uint32_t most = context_.tiers.host->max_extent_bytes();
    Status status = ValidatePart(form, part.rect, part.bytes, most);
    if (!status.ok() && form.or_codec) {
      PartForm other = form;
      other.codec = *form.or_codec;
      status = ValidatePart(other, part.rect, part.bytes, most);
    }
    CAIRN_RETURN_IF_ERROR(status);
    if (FitPart(part.rect, rects) != PartFit::kFree) {
      return InvalidArgument("field 'parts': two of them overlap");
    }
    rects.push_back(part.rect);
  }
  if (!ns->grid.AreWhole(rects)) {
    return InvalidArgument("field 'parts': expected parts that make a block whole");
  }
  return OkStatus();
}

Result<std::vector<std::span<std::byte>>> ArrivingBlock::Begin(const SourceBlock& block) {
  if (state() != State::kUnderWay) {
    return Errorf(StatusCode::kDeadlineExceeded, "block {}: nobody waits for it", key.Hex());
  }
  GiveRoomBack();
  CAIRN_RETURN_IF_ERROR(CheckParts(block));
  block_ = block;
  if (auto room = intake_.Reserve(*ns, key, block_.parts); room.ok()) {
    in_host_ = *std::move(room);
    for (const Extent& extent : in_host_) rooms_.push_back(context_.tiers.host->Map(extent));
    return ClearedRooms();
  }
  uint64_t bytes = 0;
  for (const SourceBlock::Part& part : block_.parts) bytes += part.bytes;
  share_ = budget_.TryTake(bytes);
  if (share_ == nullptr) {
    no_room_ = true;
    return Errorf(StatusCode::kResourceExhausted, "block {}: neither host nor a buffer has room",
                  key.Hex());
  }
  for (const SourceBlock::Part& part : block_.parts) {
    CAIRN_ASSIGN_OR_RETURN(PartBuffer buffer, PartBuffer::Of(part.bytes));
    rooms_.push_back(buffers_.emplace_back(std::move(buffer)).bytes());
  }
  return ClearedRooms();
}

std::vector<std::span<std::byte>> ArrivingBlock::ClearedRooms() {
  for (size_t i = 0; i < rooms_.size(); ++i) ClearHeader(block_.parts[i].rect, rooms_[i]);
  return rooms_;
}

Status ArrivingBlock::Finish() {
  if (rooms_.empty()) return Errorf(StatusCode::kFailedPrecondition, "Finish without Begin");
  for (size_t i = 0; i < rooms_.size(); ++i) {
    const Status status =
        VerifyPartBytes(ns->storage().in_tier[TierKind::kHost], block_.parts[i].rect, rooms_[i]);
    // A sound part of another shape is as wrong as a damaged one.
    if (!status.ok()) return Errorf(StatusCode::kDataLoss, "{}", Message(status));
  }
  verified_ = true;
  return OkStatus();
}

void ArrivingBlock::Complete(const Status& status) {
  if (!status.ok() || !verified_) {
    const State outcome = no_room_ ? State::kNoRoom : State::kFailed;
    const MissReason reason = status.ok() ? MissReason::kCorrupt : ReasonOf(status);
    GiveRoomBack();
    if (!Settle(outcome, reason)) return;
    if (reason != MissReason::kCorrupt) return;
    context_.counters.corrupt_blocks.Add();
    log::Warn("block_corrupt",
              {{"tier", "source"}, {"key", key.Hex()}, {"error", ToString(status)}});
    return;
  }
  if (state() != State::kUnderWay) return GiveRoomBack();
  if (in_host_.empty()) {
    Settle(State::kBuffered, MissReason::kNone);
    return;
  }
  const auto pin = intake_.Commit(ns, key, block_, in_host_);
  if (!pin.ok()) {
    GiveRoomBack();
    Settle(State::kFailed, MissReason::kAbsent);
    return;
  }
  in_host_.clear();
  auto pins = std::make_shared<PathPins>(&context_, ns);
  pins->Add(*pin);
  Settle(State::kInHost, MissReason::kNone, std::move(pins));
}

void ArrivingBlock::GiveUp(MissReason reason) { Settle(State::kFailed, reason); }

bool ArrivingBlock::Settle(State state, MissReason reason, std::shared_ptr<PathPins> pins) {
  MutexLock lock(mu_);
  if (state_ != State::kUnderWay) return false;
  state_ = state;
  reason_ = reason;
  pins_ = std::move(pins);
  return true;
}

void ArrivingBlock::GiveRoomBack() {
  if (!in_host_.empty()) intake_.Abort(*ns, key, in_host_);
  in_host_.clear();
  rooms_.clear();
  buffers_.clear();
  share_.reset();
  verified_ = no_room_ = false;
}

}  // namespace cairn::cache
