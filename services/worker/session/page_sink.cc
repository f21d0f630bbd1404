#include "services/worker/session/page_sink.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "common/log/log.h"

namespace cairn::worker {
namespace {

// Slices wait for others to be decoded with on the device: until this many bytes are there, or for
// this long.
constexpr uint64_t kWaitingBytes = 4 << 20;
constexpr Duration kWaitingTime = std::chrono::milliseconds(5);

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
  // Somebody else ends it.
  void HandOver() { granted_ = false; }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;
  explicit operator bool() const { return granted_; }

 private:
  FetchProgress& progress_;
  const uint32_t block_;
  bool granted_;
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
  for (const Waiting& waiting : waiting_) progress_.EndWrite(waiting.slice.block);
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
  Writing writing(progress_, slice.block);
  if (!writing || progress_.Missing(PieceOf(slice)) == 0) return OkStatus();
  if (Queue(slice, data, nullptr)) {
    writing.HandOver();
  } else {
    Copy(slice, data);
  }
  return OkStatus();
}

Status PageSink::OnLentSlice(const client::SliceInfo& slice, std::span<const std::byte> data,
                             std::shared_ptr<const client::LentHold> hold) {
  if (!Fits(slice) || data.size() != slice.slice_bytes) return WrongSlice(slice, data.size());
  Writing writing(progress_, slice.block);
  if (!writing || progress_.Missing(PieceOf(slice)) == 0) return OkStatus();
  if (Lend(slice, data, hold)) return OkStatus();
  if (Queue(slice, data, std::move(hold))) {
    writing.HandOver();
  } else {
    Copy(slice, data);
  }
  return OkStatus();
}

std::string PageSink::WantsDevice() const {
  return options_.loader == nullptr ? std::string() : options_.loader->device();
}

bool PageSink::Waits(uint32_t block) const {
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [&](const Waiting& waiting) { return waiting.slice.block == block; });
}

bool PageSink::LoadsOnDevice(const client::SliceInfo& slice) const {
  return options_.loader != nullptr && slice.block < options_.stamps.size() && AllHeads(slice) &&
         codec_.FormOf(slice.codec) != nullptr && !sequence_.lent(slice.block);
}

SliceLoader::Slice PageSink::TaskOf(const client::SliceInfo& slice) {
  SliceLoader::Slice task;
  task.stamp = options_.stamps[slice.block];
  task.page = sequence_.LayerSlice(slice.block, static_cast<int>(slice.layer)).data();
  task.layer = static_cast<int32_t>(slice.layer);
  task.first_position = static_cast<int64_t>(FirstPosition(slice));
  task.bytes = slice.slice_bytes;
  task.xxh3 = slice.xxh3;
  return task;
}

std::vector<SliceLoader::Outcome> PageSink::Load(format::Codec codec,
                                                 std::span<const SliceLoader::Slice> tasks) {
  const TimePoint begin = options_.clock->Now();
  std::vector<SliceLoader::Outcome> outcomes = options_.loader->Load(*codec_.FormOf(codec), tasks);
  uint64_t bytes = 0, pages = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (outcomes[i] != SliceLoader::Outcome::kGood) continue;
    bytes += tasks[i].bytes;
    pages += kv_.layer_bytes();
  }
  codec_.CountDecoded(codec, bytes, pages, options_.clock->Now() - begin);
  return outcomes;
}

bool PageSink::Queue(const client::SliceInfo& slice, std::span<const std::byte> data,
                     std::shared_ptr<const client::LentHold> hold) {
  // Raw slices go into the page as they are, and a pass uploads it.
  if (IsRaw(slice) || !LoadsOnDevice(slice)) return false;
  if (!waiting_.empty()) {
    const client::SliceInfo& others = waiting_.front().slice;
    if (others.layer != slice.layer || others.codec != slice.codec ||
        waiting_bytes_ + data.size() > kWaitingBytes ||
        options_.clock->Now() - waiting_since_ >= kWaitingTime) {
      Flush();
    }
  }
  if (waiting_.empty()) waiting_since_ = options_.clock->Now();
  if (Waits(slice.block)) return false;  // It came twice.
  Waiting& waiting = waiting_.emplace_back();
  waiting.slice = slice;
  waiting.hold = std::move(hold);
  if (waiting.hold == nullptr) {
    waiting.own.assign(data.begin(), data.end());
    waiting.data = waiting.own;
  } else {
    waiting.data = data;
  }
  waiting_bytes_ += data.size();
  return true;
}

void PageSink::Flush() {
  if (waiting_.empty()) return;
  const std::vector<Waiting> waiting = std::exchange(waiting_, {});
  waiting_bytes_ = 0;
  std::vector<SliceLoader::Slice> tasks;
  for (const Waiting& w : waiting) tasks.emplace_back(TaskOf(w.slice)).host = w.data.data();
  const auto outcomes = Load(waiting.front().slice.codec, tasks);
  for (size_t i = 0; i < waiting.size(); ++i) {
    const client::SliceInfo& slice = waiting[i].slice;
    if (outcomes[i] == SliceLoader::Outcome::kGood) {
      Arrived(slice, waiting[i].data.size(), false);
    } else {
      // The client has verified these bytes: what went wrong is the device's.
      Copy(slice, waiting[i].data);
    }
    progress_.EndWrite(slice.block);
  }
}

Result<std::vector<client::DeviceRead>> PageSink::OnDeviceSlices(
    std::span<const client::DeviceSlice> slices) {
  Flush();
  std::vector<client::DeviceRead> reads(slices.size(), client::DeviceRead::kUnread);
  std::map<format::Codec, std::vector<size_t>> by_codec;
  for (size_t i = 0; i < slices.size(); ++i) {
    const client::SliceInfo& slice = slices[i].slice;
    if (!Fits(slice)) return WrongSlice(slice, slice.slice_bytes);
    if (LoadsOnDevice(slice)) by_codec[slice.codec].push_back(i);
  }
  for (const auto& [codec, numbers] : by_codec) LoadFromDevice(codec, numbers, slices, &reads);
  return reads;
}

void PageSink::LoadFromDevice(format::Codec codec, std::span<const size_t> numbers,
                              std::span<const client::DeviceSlice> slices,
                              std::vector<client::DeviceRead>* reads) {
  std::vector<size_t> loaded;
  std::vector<SliceLoader::Slice> tasks;
  for (const size_t i : numbers) {
    const client::SliceInfo& slice = slices[i].slice;
    Writing writing(progress_, slice.block);
    if (!writing || progress_.Missing(PieceOf(slice)) == 0) {
      (*reads)[i] = client::DeviceRead::kGood;  // Nobody needs it any more.
      continue;
    }
    writing.HandOver();
    loaded.push_back(i);
    tasks.emplace_back(TaskOf(slice)).address = slices[i].address;
  }
  const auto outcomes = Load(codec, tasks);
  for (size_t i = 0; i < loaded.size(); ++i) {
    const client::SliceInfo& slice = slices[loaded[i]].slice;
    if (outcomes[i] == SliceLoader::Outcome::kGood) {
      (*reads)[loaded[i]] = client::DeviceRead::kGood;
      Arrived(slice, slice.slice_bytes, false);
    } else if (outcomes[i] == SliceLoader::Outcome::kWrong) {
      (*reads)[loaded[i]] = client::DeviceRead::kWrong;
    }
    progress_.EndWrite(slice.block);
  }
}

void PageSink::OnBlockFailed(uint32_t block, client::MissReason reason) {
  progress_.BlockFailed(block, reason);
}

bool PageSink::Lend(const client::SliceInfo& slice, std::span<const std::byte> data,
                    const std::shared_ptr<const client::LentHold>& hold) {
  if (!IsRaw(slice) || !AllHeads(slice) || slice.part.layer_begin != 0 ||
      slice.part.layer_end != static_cast<uint32_t>(kv_.layers) || hold == nullptr ||
      Waits(slice.block)) {
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
  progress_.Arrived(PieceOf(slice), bytes, slice.tier, lent);
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
