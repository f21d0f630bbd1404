#include "clients/cpp/src/local/local_fetch.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "clients/cpp/src/local/place_header.h"
#include "common/hash/xxh3_stream.h"
#include "common/log/log.h"
#include "protocol/shm/decode.h"

namespace cairn::client::local {
namespace {

// Below this, bytes are copied through the cache.
constexpr uint64_t kBulkBytes = 64 << 10;
// Bytes between two fences, and between two looks at the clock: some 20 us.
constexpr uint64_t kGroupBytes = 256 << 10;
// Slices on a GPU that the sink gets at a time.
constexpr size_t kDeviceSlices = 1024;
// The longest wait at the node, so that a cancelled fetch ends soon.
constexpr Duration kWait = std::chrono::milliseconds(20);

class Hold final : public LentHold {
 public:
  Hold(std::shared_ptr<LeasePin> pin, std::shared_ptr<const ArenaSegment> segment)
      : pin_(std::move(pin)), segment_(std::move(segment)) {}
  bool Pinned() const override { return pin_->session()->Alive(); }

 private:
  const std::shared_ptr<LeasePin> pin_;
  const std::shared_ptr<const ArenaSegment> segment_;  // Keeps the bytes mapped.
};

// Copies and hashes in one pass. Through memory of our own, so that exactly what is copied is
// hashed: another process may still write to where it comes from.
uint64_t CopyToPieces(std::span<const std::byte> from, std::span<const std::span<std::byte>> pieces,
                      bool streaming) {
  alignas(64) std::byte own[4 << 10];
  Xxh3Stream hash;
  for (std::span<std::byte> to : pieces) {
    while (!to.empty()) {
      const size_t n = std::min(sizeof(own), to.size());
      std::memcpy(own, from.data(), n);
      hash.Update({own, n});
      if (streaming) {
        StreamingCopy(to.data(), own, n);
      } else {
        std::memcpy(to.data(), own, n);
      }
      from = from.subspan(n);
      to = to.subspan(n);
    }
  }
  return hash.Digest();
}

}  // namespace

LocalFetch::LocalFetch(std::shared_ptr<LeasePin> pin, uint32_t blocks, const FetchRange& range,
                       FetchSink& sink, const FetchOptions& options, TimePoint deadline)
    : pin_(std::move(pin)),
      session_(*pin_->session()),
      clock_(session_.clock()),
      block_begin_(std::min(range.block_begin, blocks)),
      block_end_(std::max(block_begin_,
                          range.block_end == 0 ? blocks : std::min(range.block_end, blocks))),
      layer_begin_(range.layer_begin),
      layer_end_(range.layer_end),
      sink_(sink),
      options_(options),
      deadline_(deadline),
      lend_(sink.WantsLent()),
      on_device_(!sink.WantsDevice().empty()),
      blocks_(block_end_ - block_begin_, Block::kOpen) {}

std::vector<std::pair<uint32_t, uint32_t>> LocalFetch::rest() const {
  std::vector<std::pair<uint32_t, uint32_t>> ranges;
  for (uint32_t block = block_begin_; block < block_end_; ++block) {
    const Block state = blocks_[block - block_begin_];
    if (state == Block::kFailed || state == Block::kDone) continue;
    if (ranges.empty() || ranges.back().second != block) ranges.push_back({block, block});
    ranges.back().second = block + 1;
  }
  return ranges;
}

std::vector<SliceInfo> LocalFetch::delivered_of_rest() const {
  std::vector<SliceInfo> delivered;
  for (const SliceInfo& slice : delivered_on_device_) {
    const Block state = blocks_[slice.block - block_begin_];
    if (state != Block::kFailed && state != Block::kDone) delivered.push_back(slice);
  }
  return delivered;
}

Status LocalFetch::CheckTime(TimePoint now) const {
  if (options_.cancel.stop_requested()) {
    return Errorf(StatusCode::kCancelled, "fetch: cancelled by the caller");
  }
  if (now >= deadline_) {
    return Errorf(StatusCode::kDeadlineExceeded, "fetch: it took longer than its deadline");
  }
  if (now >= progress_) {
    return Errorf(StatusCode::kDeadlineExceeded, "fetch: no new slice in time");
  }
  return OkStatus();
}

std::pair<uint32_t, uint32_t> LocalFetch::Pending() const {
  const auto is_pending = [](Block state) { return state == Block::kPending; };
  const auto first = std::find_if(blocks_.begin(), blocks_.end(), is_pending);
  if (first == blocks_.end()) return {0, 0};
  const auto last = std::find_if(blocks_.rbegin(), blocks_.rend(), is_pending);
  return {block_begin_ + static_cast<uint32_t>(first - blocks_.begin()),
          block_end_ - static_cast<uint32_t>(last - blocks_.rbegin())};
}

Status LocalFetch::Run() {
  const TimePoint begin = clock_.Now();
  progress_ = begin + options_.progress;
  CAIRN_RETURN_IF_ERROR(CheckTime(begin));
  // The places that the match returned, as far as they are in the range; the rest is asked for.
  CAIRN_RETURN_IF_ERROR(Take(pin_->places(), pin_->located()));
  for (uint32_t block = std::max(pin_->located(), block_begin_); block < block_end_; ++block) {
    StateOf(block) = Block::kPending;
  }
  for (;;) {
    CAIRN_RETURN_IF_ERROR(Deliver());
    if (Pending().second == 0) return OkStatus();
    CAIRN_RETURN_IF_ERROR(CheckTime(clock_.Now()));
    CAIRN_RETURN_IF_ERROR(AskAgain());
  }
}

Status LocalFetch::AskAgain() {
  const auto [begin, end] = Pending();
  const TimePoint until = std::min(deadline_, progress_);
  const Duration left = until - clock_.Now();
  CAIRN_ASSIGN_OR_RETURN(const LocalSession::Located located,
                         session_.Locate(pin_->lease(), begin, end, std::min(kWait, left), until));
  // Only what was asked for is news: other blocks of the range were delivered.
  std::vector<shm::PlaceEntry> news;
  for (const shm::PlaceEntry& place : located.places) {
    if (place.block >= begin && place.block < end && StateOf(place.block) == Block::kPending) {
      news.push_back(place);
    }
  }
  const uint32_t known = begin + located.located;
  for (uint32_t block = begin; block < known; ++block) {
    if (StateOf(block) == Block::kPending) StateOf(block) = Block::kOpen;
  }
  return Take(news, known);
}

Status LocalFetch::Take(std::span<const shm::PlaceEntry> places, uint32_t known) {
  // In order of blocks, as the session has checked: one lease may be read in many small fetches.
  const uint32_t end = std::min(block_end_, known);
  const auto first = std::lower_bound(
      places.begin(), places.end(), block_begin_,
      [](const shm::PlaceEntry& place, uint32_t block) { return place.block < block; });
  for (const shm::PlaceEntry& place : places.subspan(static_cast<size_t>(first - places.begin()))) {
    if (place.block >= end) break;
    Block& state = StateOf(place.block);
    if (state == Block::kFailed || state == Block::kElsewhere) continue;
    switch (static_cast<shm::PlaceState>(place.state)) {
      case shm::PlaceState::kHere:
        CAIRN_RETURN_IF_ERROR(AddReady(place));
        break;
      case shm::PlaceState::kPending:
        state = Block::kPending;
        break;
      case shm::PlaceState::kFailed:
        CAIRN_RETURN_IF_ERROR(shm::CheckPlace(place, 0));
        Fail(place.block, static_cast<MissReason>(place.reason));
        break;
      case shm::PlaceState::kElsewhere:
        state = Block::kElsewhere;
        break;
      default:
        return shm::CheckPlace(place, 0);
    }
  }
  // A block of which a part is not here yet is answered whole next time. The others' headers are in
  // nobody's cache: all are asked for before the first is read.
  std::erase_if(ready_,
                [&](const Part& part) { return StateOf(part.place.block) != Block::kOpen; });
  CopyHeaders();
  for (const Part& part : ready_) {
    for (size_t line = 0; line < std::min<size_t>(part.bytes.size(), 256); line += 64) {
      __builtin_prefetch(part.bytes.data() + line);
    }
  }
  for (Part& part : ready_) {
    if (StateOf(part.place.block) == Block::kOpen) ReadHeader(part);
  }
  std::erase_if(ready_,
                [&](const Part& part) { return StateOf(part.place.block) != Block::kOpen; });
  return OkStatus();
}

Status LocalFetch::AddReady(const shm::PlaceEntry& place) {
  Part part;
  part.place = place;
  if ((place.flags & shm::kOnDevice) != 0) {
    CAIRN_ASSIGN_OR_RETURN(part.chunk, session_.ChunkOf(place));
    if (part.chunk == nullptr) {
      Elsewhere(place.block);
      return OkStatus();
    }
  } else {
    CAIRN_ASSIGN_OR_RETURN(part.segment, session_.SegmentOf(place));
    part.bytes = part.segment->Read(place.offset, place.bytes);
  }
  ready_.push_back(std::move(part));
  return OkStatus();
}

template <typename Item, typename PieceOf, typename Failed>
void LocalFetch::ReadChunks(std::span<Item> items, const PieceOf& piece_of, const Failed& failed) {
  std::map<const DeviceChunk*, std::vector<DeviceChunk::Piece>> pieces;
  for (Item& item : items) {
    const auto [chunk, piece] = piece_of(item);
    if (chunk != nullptr) pieces[chunk].push_back(piece);
  }
  std::set<const DeviceChunk*> unread;
  for (const auto& [chunk, of_chunk] : pieces) {
    const Status read = chunk->Read(of_chunk, std::min(deadline_, progress_));
    if (read.ok()) continue;
    log::Warn("cache_chunk_not_read", {{"reason", Message(read)}});
    unread.insert(chunk);
  }
  if (unread.empty()) return;
  for (Item& item : items) {
    if (unread.contains(piece_of(item).first)) failed(item);
  }
}

void LocalFetch::CopyHeaders() {
  for (Part& part : ready_) {
    if (part.chunk == nullptr) continue;
    const auto layers = static_cast<uint32_t>(part.place.layer_end - part.place.layer_begin);
    part.copied.resize(std::min<size_t>(format::HeaderBytes(layers), part.place.bytes));
    part.bytes = part.copied;
  }
  ReadChunks<Part>(
      ready_,
      [](Part& part) {
        return std::pair(part.chunk.get(), DeviceChunk::Piece{part.place.offset, part.copied});
      },
      [this](const Part& part) { Elsewhere(part.place.block); });
}

void LocalFetch::ReadHeader(Part& part) {
  const shm::PlaceEntry& place = part.place;
  Result<format::PartHeader> header = ReadHeaderOf(place, part.bytes, &header_);
  if (!header.ok()) return Corrupt(part);
  part.header = std::move(*header);
  if (part.chunk != nullptr) return;
  // A hash of bytes that somebody can still write to says nothing about the next look at them, and
  // looking again at the end would not either: they may have been changed back.
  const bool changes = (place.flags & shm::kLent) != 0 || !part.segment->frozen();
  if (lend_ && !changes) part.hold = std::make_shared<Hold>(pin_, part.segment);
}

void LocalFetch::Corrupt(const Part& part) {
  session_.Report(pin_->lease(), part.place.block);
  ++counts_.corrupt;
  if (part.chunk != nullptr) return Elsewhere(part.place.block);
  Fail(part.place.block, MissReason::kCorrupt);
}

void LocalFetch::Elsewhere(uint32_t block) {
  Block& state = StateOf(block);
  if (state == Block::kOpen) state = Block::kElsewhere;
}

void LocalFetch::Fail(uint32_t block, MissReason reason) {
  if (std::exchange(StateOf(block), Block::kFailed) != Block::kFailed) {
    sink_.OnBlockFailed(block, reason);
  }
}

Status LocalFetch::Deliver() {
  if (ready_.empty()) return OkStatus();
  uint32_t begin = UINT32_MAX, end = 0;
  uint64_t bytes = 0;
  for (const Part& part : ready_) {
    begin = std::min<uint32_t>(begin, part.header.rect.layer_begin);
    end = std::max<uint32_t>(end, part.header.rect.layer_end);
    bytes += part.place.bytes;
  }
  begin = std::max(begin, layer_begin_);
  if (layer_end_ != 0) end = std::min(end, layer_end_);
  streaming_ = bytes >= kBulkBytes;
  for (uint32_t layer = begin; layer < end; ++layer) {
    for (const Part& part : ready_) {
      if (layer < part.header.rect.layer_begin || layer >= part.header.rect.layer_end) continue;
      if (StateOf(part.place.block) != Block::kOpen) continue;
      CAIRN_RETURN_IF_ERROR(DeliverSlice(part, layer));
    }
    CAIRN_RETURN_IF_ERROR(FlushOnDevice());
  }
  CAIRN_RETURN_IF_ERROR(Flush());
  for (const Part& part : ready_) {
    if (StateOf(part.place.block) == Block::kOpen) StateOf(part.place.block) = Block::kDone;
  }
  ready_.clear();
  return OkStatus();
}

Status LocalFetch::DeliverSlice(const Part& part, uint32_t layer) {
  const format::SliceEntry& entry = part.header.slices[layer - part.header.rect.layer_begin];
  const SliceInfo slice = {.block = part.place.block,
                           .part = part.header.rect,
                           .layer = layer,
                           .codec = part.header.codec,
                           .slice_bytes = entry.length,
                           .xxh3 = entry.xxh3,
                           .tier = TierFromCode(part.place.tier)};
  if (part.chunk != nullptr && on_device_ && entry.length > 0) {
    device_parts_.push_back(&part);
    device_queue_.push_back({slice, part.chunk->address() + part.place.offset + entry.offset});
    return device_queue_.size() < kDeviceSlices ? OkStatus() : FlushOnDevice();
  }
  Queued& queued = queue_.emplace_back();
  queued.part = &part;
  queued.slice = slice;
  if (part.chunk == nullptr) {
    queued.from = part.bytes.subspan(entry.offset, entry.length);
  } else {
    queued.copied.resize(entry.length);
    queued.from = queued.copied;
  }
  const bool lent = queued.lent();
  if (!lent) queued.to = sink_.Destination(queued.slice);
  if (!lent && queued.to.empty()) queued.pieces = sink_.Pieces(queued.slice);
  const bool given = !queued.to.empty() || !queued.pieces.empty();
  uint64_t room = queued.to.size();
  for (const std::span<std::byte> piece : queued.pieces) room += piece.size();
  if (given && room != entry.length) {
    return Errorf(StatusCode::kInternal, "fetch: destination of {} bytes for a slice of {}", room,
                  entry.length);
  }
  if (!lent && !given) {
    // A copy of the client's own: what lies in shared memory may change between the check and the
    // reader's look at it.
    if (!spare_.empty()) {
      queued.own = std::move(spare_.back());
      spare_.pop_back();
    }
    queued.own.resize(entry.length);
    queued.to = queued.own;
  }
  queued_bytes_ += entry.length;
  if (queued_bytes_ < kGroupBytes) return OkStatus();
  return Flush();
}

void LocalFetch::Queued::AddRuns(std::vector<CopyRun>* runs) const {
  if (!to.empty()) runs->push_back({to.data(), from.data(), to.size()});
  size_t at = 0;
  for (const std::span<std::byte> piece : pieces) {
    if (!piece.empty()) runs->push_back({piece.data(), from.data() + at, piece.size()});
    at += piece.size();
  }
}

void LocalFetch::CopyQueued() {
  if (options_.verify) {
    for (size_t i = 0; i < queue_.size(); ++i) {
      Queued& q = queue_[i];
      const std::byte* const next = i + 1 < queue_.size() ? queue_[i + 1].from.data() : nullptr;
      const uint64_t hash = !q.pieces.empty() ? CopyToPieces(q.from, q.pieces, streaming_)
                            : q.lent()        ? BulkXxh3(q.from, next)
                                       // Bytes that are copied again at once should stay in the
                                       // cache.
                                       : CopyXxh3(q.to.data(), q.from.data(), q.from.size(),
                                                  streaming_ && q.own.empty(), next);
      q.good = hash == q.slice.xxh3;
    }
  } else {
    std::vector<CopyRun> runs;
    runs.reserve(queue_.size());
    for (const Queued& q : queue_) q.AddRuns(&runs);
    if (streaming_) {
      StreamingCopy(runs);
    } else {
      for (const CopyRun& run : runs) std::memcpy(run.to, run.from, run.bytes);
    }
  }
  if (streaming_) StreamingFence();
}

void LocalFetch::CopyFromDevices() {
  ReadChunks<Queued>(
      queue_,
      [](Queued& q) {
        const Part& part = *q.part;
        const DeviceChunk* const chunk = q.copied.empty() ? nullptr : part.chunk.get();
        const uint64_t at =
            chunk == nullptr
                ? 0
                : part.header.slices[q.slice.layer - part.header.rect.layer_begin].offset;
        return std::pair(chunk, DeviceChunk::Piece{part.place.offset + at, q.copied});
      },
      [this](const Queued& q) { Elsewhere(q.slice.block); });
}

void LocalFetch::Count(const Part& part, const SliceInfo& slice) {
  ++counts_.slices;
  counts_.bytes[static_cast<size_t>(slice.tier.value_or(TierKind::kHost))] += slice.slice_bytes;
  if (part.chunk != nullptr) delivered_on_device_.push_back(slice);
}

Status LocalFetch::FlushOnDevice() {
  if (device_queue_.empty()) return OkStatus();
  const std::vector<DeviceSlice> slices = std::exchange(device_queue_, {});
  const std::vector<const Part*> parts = std::exchange(device_parts_, {});
  CAIRN_ASSIGN_OR_RETURN(const std::vector<DeviceRead> reads, sink_.OnDeviceSlices(slices));
  if (reads.size() != slices.size()) {
    return Errorf(StatusCode::kInternal, "fetch: the reader told of {} slices on a GPU, got {}",
                  reads.size(), slices.size());
  }
  for (size_t i = 0; i < slices.size(); ++i) {
    // One block may have several parts here.
    if (reads[i] == DeviceRead::kGood) {
      Count(*parts[i], slices[i].slice);
    } else if (StateOf(slices[i].slice.block) == Block::kOpen) {
      if (reads[i] == DeviceRead::kWrong) {
        Corrupt(*parts[i]);
      } else {
        Elsewhere(slices[i].slice.block);
      }
    }
  }
  const TimePoint now = clock_.Now();
  progress_ = now + options_.progress;
  return CheckTime(now);
}

Status LocalFetch::Flush() {
  CopyFromDevices();
  CopyQueued();
  std::vector<Queued> queue = std::exchange(queue_, {});
  queued_bytes_ = 0;
  for (Queued& q : queue) {
    if (StateOf(q.slice.block) != Block::kOpen) continue;
    if (!q.good) {
      Corrupt(*q.part);
      continue;
    }
    // The reader may take its time with each.
    const TimePoint now = clock_.Now();
    progress_ = now + options_.progress;
    CAIRN_RETURN_IF_ERROR(CheckTime(now));
    Count(*q.part, q.slice);
    if (q.lent()) {
      counts_.lent_bytes += q.from.size();
      CAIRN_RETURN_IF_ERROR(sink_.OnLentSlice(q.slice, q.from, q.part->hold));
    } else {
      CAIRN_RETURN_IF_ERROR(sink_.OnSlice(q.slice, q.to));  // Empty: in pieces.
      if (!q.own.empty()) spare_.push_back(std::move(q.own));
    }
  }
  progress_ = clock_.Now() + options_.progress;
  return OkStatus();
}

}  // namespace cairn::client::local
