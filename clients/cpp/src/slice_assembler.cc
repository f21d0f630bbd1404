#include "clients/cpp/src/slice_assembler.h"

#include <cstring>

#include "cairn/common/hash.h"
#include "common/memory/bulk_copy.h"

namespace cairn::client {
namespace {

// From here on the destination should not push everything else through the caches.
constexpr size_t kStreaming = 64 << 10;

}  // namespace

Status SliceAssembler::Check(const SlicePiece& piece, uint64_t piece_bytes) const {
  const SliceInfo& slice = piece.slice;
  if (slice.block >= limits_.blocks) {
    return Errorf(StatusCode::kDataLoss, "fetch: slice of block {}, the lease has {}", slice.block,
                  limits_.blocks);
  }
  if (slice.layer < slice.part.layer_begin || slice.layer >= slice.part.layer_end) {
    return Errorf(StatusCode::kDataLoss, "fetch: slice of layer {} in a part with layers [{}, {})",
                  slice.layer, slice.part.layer_begin, slice.part.layer_end);
  }
  if (slice.slice_bytes > limits_.max_slice_bytes) {
    return Errorf(StatusCode::kDataLoss, "fetch: slice of {} bytes, expected at most {}",
                  slice.slice_bytes, limits_.max_slice_bytes);
  }
  if (piece.offset > slice.slice_bytes || piece_bytes > slice.slice_bytes - piece.offset) {
    return Errorf(StatusCode::kDataLoss, "fetch: piece [{}, +{}) of a slice of {} bytes",
                  piece.offset, piece_bytes, slice.slice_bytes);
  }
  return OkStatus();
}

void SliceAssembler::Copy(const SlicePiece& piece, std::byte* to, Xxh3Stream* hash) {
  const bool streaming = piece.slice.slice_bytes >= kStreaming;
  for (const auto& chunk : piece.chunks) {
    if (chunk.empty()) continue;
    // The hash brings the chunk into the cache, from where it is copied.
    if (hash != nullptr) hash->Update(chunk);
    if (streaming) {
      StreamingCopy(to, chunk.data(), chunk.size());
    } else {
      std::memcpy(to, chunk.data(), chunk.size());
    }
    to += chunk.size();
  }
  if (streaming) StreamingFence();
}

uint64_t SliceAssembler::CopyWhole(const SlicePiece& piece, std::byte* to) {
  if (!limits_.verify) {
    Copy(piece, to, nullptr);
    return piece.slice.xxh3;
  }
  if (piece.chunks.size() == 1) {
    const auto& chunk = piece.chunks[0];
    const uint64_t hash = CopyXxh3(to, chunk.data(), chunk.size(), chunk.size() >= kStreaming);
    StreamingFence();
    return hash;
  }
  whole_.Reset();
  Copy(piece, to, &whole_);
  return whole_.Digest();
}

Status SliceAssembler::Take(const SlicePiece& piece) {
  const SliceInfo& slice = piece.slice;
  uint64_t piece_bytes = 0;
  for (const auto& chunk : piece.chunks) piece_bytes += chunk.size();
  CAIRN_RETURN_IF_ERROR(Check(piece, piece_bytes));

  const SliceKey key(slice.block, slice.layer, slice.part);
  if (retrying_ && !wrong_.contains(key)) return OkStatus();
  auto it = open_.find(key);
  if (it == open_.end()) {
    const std::span<std::byte> destination = sink_->Destination(slice);
    if (!destination.empty() && destination.size() != slice.slice_bytes) {
      return Errorf(StatusCode::kInternal, "fetch: destination of {} bytes for a slice of {}",
                    destination.size(), slice.slice_bytes);
    }
    if (piece_bytes == slice.slice_bytes) {
      // The usual case: the slice is whole. Where its bytes lie together and nobody wants them
      // elsewhere, they are not moved.
      if (destination.empty() && piece.chunks.size() <= 1) {
        const std::span<const std::byte> data =
            piece.chunks.empty() ? std::span<const std::byte>() : piece.chunks[0];
        return Complete(slice, data, limits_.verify ? Xxh3(data) : slice.xxh3);
      }
      std::vector<std::byte> own(destination.empty() ? slice.slice_bytes : 0);
      const std::span<std::byte> to = destination.empty() ? std::span(own) : destination;
      return Complete(slice, to, CopyWhole(piece, to.data()));
    }
    if (slice.slice_bytes > limits_.max_open_bytes - open_bytes_) {
      return Errorf(StatusCode::kDataLoss, "fetch: more than {} bytes of unfinished slices",
                    limits_.max_open_bytes);
    }
    it = open_.emplace(key, Open{}).first;
    Open& open = it->second;
    if (destination.empty()) open.own.resize(slice.slice_bytes);
    open.destination = destination.empty() ? std::span(open.own) : destination;
    open_bytes_ += slice.slice_bytes;
  } else if (it->second.destination.size() != slice.slice_bytes) {
    return Errorf(StatusCode::kDataLoss, "fetch: a slice changed its size from {} to {} bytes",
                  it->second.destination.size(), slice.slice_bytes);
  }

  // Pieces that overlap make the count reach the end early; the hash then tells.
  Open& open = it->second;
  open.in_order = open.in_order && piece.offset == open.received;
  Copy(piece, open.destination.data() + piece.offset,
       limits_.verify && open.in_order ? &open.hash : nullptr);
  open.received += piece_bytes;
  if (open.received < slice.slice_bytes) return OkStatus();
  const Open whole = std::move(open);
  open_.erase(it);
  open_bytes_ -= slice.slice_bytes;
  if (!limits_.verify) return Complete(slice, whole.destination, slice.xxh3);
  return Complete(slice, whole.destination,
                  whole.in_order ? whole.hash.Digest() : Xxh3(whole.destination));
}

Status SliceAssembler::Complete(const SliceInfo& slice, std::span<const std::byte> data,
                                uint64_t xxh3) {
  const SliceKey key(slice.block, slice.layer, slice.part);
  if (xxh3 != slice.xxh3) {
    if (retrying_) return OkStatus();  // EndRetry tells.
    ++counts_.corrupt;
    if (wrong_.size() < limits_.max_retries) {
      wrong_.insert(key);
    } else {
      Fail(slice.block, MissReason::kCorrupt);
    }
    return OkStatus();
  }
  wrong_.erase(key);
  ++counts_.slices;
  counts_.bytes[static_cast<size_t>(slice.tier.value_or(TierKind::kHost))] += data.size();
  return sink_->OnSlice(slice, data);
}

std::vector<uint32_t> SliceAssembler::BeginRetry() {
  retrying_ = true;
  std::vector<uint32_t> blocks;
  for (const SliceKey& key : wrong_) {
    if (blocks.empty() || blocks.back() != std::get<0>(key)) blocks.push_back(std::get<0>(key));
  }
  return blocks;
}

void SliceAssembler::EndRetry() {
  for (const SliceKey& key : wrong_) Fail(std::get<0>(key), MissReason::kCorrupt);
  wrong_.clear();
  retrying_ = false;
}

void SliceAssembler::Fail(uint32_t block, MissReason reason) {
  if (block >= limits_.blocks) return;
  if (failed_.insert(block).second) sink_->OnBlockFailed(block, reason);
}

}  // namespace cairn::client
