#include "services/worker/session/page_sink.h"

#include <algorithm>
#include <cstring>

#include "common/log/log.h"

namespace cairn::worker {
namespace {

class NodeLoan final : public PageLoan {
 public:
  explicit NodeLoan(std::shared_ptr<const client::LentHold> hold) : hold_(std::move(hold)) {}
  bool Intact() const override { return hold_->Pinned(); }

 private:
  const std::shared_ptr<const client::LentHold> hold_;
};

// Leave to write to a block, for a scope.
class Writing {
 public:
  Writing(FetchProgress& progress, uint32_t block)
      : progress_(progress), block_(block), granted_(progress.BeginWrite(block)) {}
  ~Writing() {
    if (granted_) progress_.EndWrite(block_);
  }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;
  explicit operator bool() const { return granted_; }

 private:
  FetchProgress& progress_;
  const uint32_t block_;
  const bool granted_;
};

size_t Heads(const client::SliceInfo& slice) {
  return static_cast<size_t>(slice.part.head_end - slice.part.head_begin);
}

bool IsRaw(const client::SliceInfo& slice) { return slice.codec == format::Codec::kRaw; }

FetchProgress::Piece PieceOf(const client::SliceInfo& slice) {
  return {slice.block, slice.layer, slice.part.head_begin, slice.part.head_end};
}

}  // namespace

PageSink::PageSink(const KvLayout& kv, const KvCodec& codec, KvSequence& sequence,
                   FetchProgress& progress, const Options& options)
    : kv_(kv), codec_(codec), sequence_(sequence), progress_(progress), options_(options) {}

PageSink::~PageSink() {
  for (const auto& [block, layer] : open_) progress_.EndWrite(block);
}

std::span<std::byte> PageSink::Destination(const client::SliceInfo& slice) {
  if (!IsRaw(slice) || !Fits(slice) || !AllHeads(slice) || !progress_.BeginWrite(slice.block)) {
    return {};
  }
  const std::pair<uint32_t, uint32_t> place{slice.block, slice.layer};
  // Not where verified bytes are, nor where others are being written.
  if (progress_.Missing(PieceOf(slice)) != Heads(slice) || sequence_.lent(slice.block) ||
      std::find(open_.begin(), open_.end(), place) != open_.end()) {
    progress_.EndWrite(slice.block);
    return {};
  }
  open_.push_back(place);
  return sequence_.LayerSlice(slice.block, static_cast<int>(slice.layer));
}

Status PageSink::OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) {
  if (!Fits(slice) || data.size() != slice.slice_bytes) return WrongSlice(slice, data.size());
  const std::pair<uint32_t, uint32_t> place{slice.block, slice.layer};
  const auto open = std::find(open_.begin(), open_.end(), place);
  if (open != open_.end() && AllHeads(slice) &&
      data.data() == sequence_.LayerSlice(slice.block, static_cast<int>(slice.layer)).data()) {
    if (progress_.Missing(PieceOf(slice)) > 0) Arrived(slice, data.size(), false);
    open_.erase(open);
    progress_.EndWrite(slice.block);
    return OkStatus();
  }
  const Writing writing(progress_, slice.block);
  if (writing && progress_.Missing(PieceOf(slice)) > 0) Copy(slice, data);
  return OkStatus();
}

Status PageSink::OnLentSlice(const client::SliceInfo& slice, std::span<const std::byte> data,
                             std::shared_ptr<const client::LentHold> hold) {
  if (!Fits(slice) || data.size() != slice.slice_bytes) return WrongSlice(slice, data.size());
  const Writing writing(progress_, slice.block);
  if (!writing || progress_.Missing(PieceOf(slice)) == 0) return OkStatus();
  if (!Lend(slice, data, hold)) Copy(slice, data);
  return OkStatus();
}

void PageSink::OnBlockFailed(uint32_t block, client::MissReason reason) {
  progress_.BlockFailed(block, reason);
}

bool PageSink::Lend(const client::SliceInfo& slice, std::span<const std::byte> data,
                    const std::shared_ptr<const client::LentHold>& hold) {
  if (!IsRaw(slice) || !AllHeads(slice) || slice.part.layer_begin != 0 ||
      slice.part.layer_end != static_cast<uint32_t>(kv_.layers) || hold == nullptr) {
    return false;
  }
  // Where the block's first layer lies.
  const std::byte* base = data.data() - kv_.layer_bytes() * slice.layer;
  if (sequence_.lent(slice.block)) {
    if (sequence_.pages()[slice.block] != base) return false;
  } else if (progress_.Untouched(slice.block)) {
    if (hold != last_hold_) {
      last_hold_ = hold;
      last_loan_ = std::make_shared<NodeLoan>(hold);
    }
    sequence_.Lend(slice.block, base, last_loan_);
  } else {
    return false;
  }
  Arrived(slice, data.size(), true);
  return true;
}

void PageSink::Copy(const client::SliceInfo& slice, std::span<const std::byte> data) {
  if (sequence_.lent(slice.block)) {
    // The block's other layers are read from the node's memory, which nobody writes to, and may be
    // in use already. A node that changes its mind within a block has lost it, most likely.
    progress_.BlockFailed(slice.block, MissReason::kUnavailable);
    return;
  }
  const std::span<std::byte> page =
      sequence_.LayerSlice(slice.block, static_cast<int>(slice.layer));
  if (IsRaw(slice)) {
    CopyHeads(slice, data, page);
  } else if (const Status status = codec_.Decode(slice.codec, static_cast<int>(slice.layer),
                                                 FirstPosition(slice), data, page, scratch_);
             !status.ok()) {
    log::Warn("slice_not_decoded", {{"error", ToString(status)}});
    progress_.BlockFailed(slice.block, MissReason::kCorrupt);
    return;
  }
  Arrived(slice, data.size(), false);
}

void PageSink::Arrived(const client::SliceInfo& slice, size_t bytes, bool lent) {
  as_pushed_ = as_pushed_ && slice.codec == codec_.id();
  progress_.Arrived(PieceOf(slice), bytes, slice.tier == client::TierKind::kDisk, lent);
}

bool PageSink::Fits(const client::SliceInfo& slice) const {
  if (!codec_.Has(slice.codec) || slice.block >= sequence_.page_count() ||
      slice.layer >= static_cast<uint32_t>(kv_.layers) ||
      slice.part.head_begin >= slice.part.head_end ||
      slice.part.head_end > static_cast<uint32_t>(kv_.kv_heads)) {
    return false;
  }
  if (IsRaw(slice)) return slice.slice_bytes == 2 * kv_.head_bytes() * Heads(slice);
  return AllHeads(slice) && codec_.IsSliceBytes(slice.codec, static_cast<int>(slice.layer),
                                                FirstPosition(slice), slice.slice_bytes);
}

uint64_t PageSink::FirstPosition(const client::SliceInfo& slice) const {
  return uint64_t{slice.block} * static_cast<uint64_t>(kv_.block_tokens);
}

bool PageSink::AllHeads(const client::SliceInfo& slice) const {
  return Heads(slice) == static_cast<size_t>(kv_.kv_heads);
}

void PageSink::CopyHeads(const client::SliceInfo& slice, std::span<const std::byte> data,
                         std::span<std::byte> page) const {
  const size_t bytes = kv_.head_bytes() * Heads(slice);
  const size_t first = kv_.head_bytes() * slice.part.head_begin;
  for (size_t plane = 0; plane < 2; ++plane) {
    std::memcpy(page.data() + plane * kv_.plane_bytes() + first, data.data() + plane * bytes,
                bytes);
  }
}

Status PageSink::WrongSlice(const client::SliceInfo& slice, size_t bytes) const {
  return Errorf(StatusCode::kDataLoss,
                "slice of block {}, layer {}, heads {} to {}: got {} bytes with codec {}, which "
                "the namespace's layout does not have",
                slice.block, slice.layer, slice.part.head_begin, slice.part.head_end, bytes,
                static_cast<int>(slice.codec));
}

}  // namespace cairn::worker
