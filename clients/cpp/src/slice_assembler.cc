#include "clients/cpp/src/slice_assembler.h"

#include <cstring>

#include "services/common/hash/hash.h"

namespace cairn::client {
namespace {

void CopyChunks(const SlicePiece& piece, std::byte* to) {
  for (const auto& chunk : piece.chunks) {
    if (chunk.empty()) continue;
    std::memcpy(to, chunk.data(), chunk.size());
    to += chunk.size();
  }
}

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
    return Errorf(StatusCode::kDataLoss, "fetch: slice of {} bytes, at most {} are taken",
                  slice.slice_bytes, limits_.max_slice_bytes);
  }
  if (piece.offset > slice.slice_bytes || piece_bytes > slice.slice_bytes - piece.offset) {
    return Errorf(StatusCode::kDataLoss, "fetch: piece [{}, +{}) of a slice of {} bytes",
                  piece.offset, piece_bytes, slice.slice_bytes);
  }
  return OkStatus();
}

Status SliceAssembler::Take(const SlicePiece& piece) {
  const SliceInfo& slice = piece.slice;
  uint64_t piece_bytes = 0;
  for (const auto& chunk : piece.chunks) piece_bytes += chunk.size();
  CAIRN_RETURN_IF_ERROR(Check(piece, piece_bytes));

  const SliceKey key(slice.block, slice.layer, slice.part);
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
        return Complete(slice,
                        piece.chunks.empty() ? std::span<const std::byte>() : piece.chunks[0]);
      }
      std::vector<std::byte> own(destination.empty() ? slice.slice_bytes : 0);
      const std::span<std::byte> to = destination.empty() ? std::span(own) : destination;
      CopyChunks(piece, to.data());
      return Complete(slice, to);
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
  CopyChunks(piece, it->second.destination.data() + piece.offset);
  it->second.received += piece_bytes;
  if (it->second.received < slice.slice_bytes) return OkStatus();
  const Open whole = std::move(it->second);
  open_.erase(it);
  open_bytes_ -= slice.slice_bytes;
  return Complete(slice, whole.destination);
}

Status SliceAssembler::Complete(const SliceInfo& slice, std::span<const std::byte> data) {
  // Hashed after the copy, while the bytes are still in the cache.
  if (Xxh3(data) != slice.xxh3) {
    ++counts_.corrupt;
    Fail(slice.block, MissReason::kCorrupt);
    return OkStatus();
  }
  ++counts_.slices;
  counts_.bytes[static_cast<size_t>(slice.tier)] += data.size();
  return sink_->OnSlice(slice, data);
}

void SliceAssembler::Fail(uint32_t block, MissReason reason) {
  if (block >= limits_.blocks) return;
  if (failed_.insert(block).second) sink_->OnBlockFailed(block, reason);
}

}  // namespace cairn::client
