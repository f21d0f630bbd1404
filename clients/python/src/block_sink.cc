#include "clients/python/src/block_sink.h"

#include <algorithm>
#include <cstring>

namespace cairn::python {

using client::MissReason;
using client::SliceInfo;

Result<BlockSink> BlockSink::Create(const Layout& layout, const format::PartRect& want,
                                    uint32_t first_block, std::vector<Block> into) {
  if (layout.IsNative()) {
    const uint64_t expected = client::RectAssembler::Bytes(layout, want);
    for (size_t i = 0; i < into.size(); ++i) {
      if (into[i].size() != expected) {
        return InvalidArgument("field 'into[{}]': got {} bytes, expected {}", i, into[i].size(),
                               expected);
      }
    }
  }
  return BlockSink(layout, want, first_block, std::move(into));
}

BlockSink::BlockSink(const Layout& layout, const format::PartRect& want, uint32_t first_block,
                     std::vector<Block> into)
    : layout_(&layout), want_(want), first_(first_block), into_(std::move(into)) {
  if (layout.IsNative()) {
    uint64_t offset = 0;
    for (uint32_t layer = want.layer_begin; layer < want.layer_end; ++layer) {
      offsets_.push_back(offset);
      offset += layout.SliceBytes(layer, want.head_begin, want.head_end);
    }
    offsets_.push_back(offset);
  }
  missing_cells_.assign(into_.size(), want.Cells());
  failed_.resize(into_.size());
  filled_.assign(into_.size() * want.Cells(), false);
}

bool BlockSink::Wanted(const SliceInfo& slice) const {
  if (slice.block < first_ || slice.block - first_ >= into_.size()) return false;
  if (!layout_->IsNative()) return slice.part == want_;
  return slice.layer >= want_.layer_begin && slice.layer < want_.layer_end &&
         slice.part.head_begin < want_.head_end && want_.head_begin < slice.part.head_end;
}

Status BlockSink::Check(const SliceInfo& slice) const {
  const auto expected_codec = layout_->IsNative() ? format::Codec::kRaw : format::Codec::kOpaque;
  if (slice.codec != expected_codec) {
    return Errorf(StatusCode::kUnimplemented, "block {}: its slices have codec {}, expected {}",
                  slice.block, static_cast<int>(slice.codec), static_cast<int>(expected_codec));
  }
  if (!layout_->IsNative()) {
    if (const uint64_t room = Of(slice).size(); room != slice.slice_bytes) {
      return InvalidArgument("field 'into[{}]': got {} bytes, expected {}, as the part has",
                             slice.block - first_, room, slice.slice_bytes);
    }
    return OkStatus();
  }
  const uint64_t bytes =
      layout_->SliceBytes(slice.layer, slice.part.head_begin, slice.part.head_end);
  if (bytes != slice.slice_bytes) {
    return Errorf(StatusCode::kDataLoss, "block {}, layer {}: a slice of {} bytes, expected {}",
                  slice.block, slice.layer, slice.slice_bytes, bytes);
  }
  return OkStatus();
}

std::span<std::byte> BlockSink::Destination(const SliceInfo& slice) {
  // If it is wrong, the error is reported when it has come.
  if (!Wanted(slice) || !SameHeads(slice) || !Check(slice).ok()) return {};
  const uint64_t offset = layout_->IsNative() ? Offset(slice.layer) : 0;
  return Of(slice).Contiguous(offset, slice.slice_bytes);
}

std::vector<std::span<std::byte>> BlockSink::Pieces(const SliceInfo& slice) {
  std::vector<std::span<std::byte>> pieces;
  if (!Wanted(slice) || !SameHeads(slice) || !Check(slice).ok()) return pieces;
  const uint64_t offset = layout_->IsNative() ? Offset(slice.layer) : 0;
  Of(slice).ForEachRun(offset, slice.slice_bytes,
                       [&](std::span<std::byte> run, uint64_t) { pieces.push_back(run); });
  return pieces;
}

Status BlockSink::OnSlice(const SliceInfo& slice, std::span<const std::byte> data) {
  if (!Wanted(slice)) return OkStatus();
  CAIRN_RETURN_IF_ERROR(Check(slice));
  if (SameHeads(slice)) {
    const uint64_t offset = layout_->IsNative() ? Offset(slice.layer) : 0;
    const std::span<std::byte> place = Of(slice).Contiguous(offset, data.size());
    if (place.empty() || place.data() != data.data()) Scatter(Of(slice), offset, data);
  } else {
    CAIRN_RETURN_IF_ERROR(Assemble(slice, data));
  }
  bytes_ += slice.slice_bytes;
  MarkHeads(slice);
  return OkStatus();
}

Result<std::vector<client::DeviceRead>> BlockSink::OnDeviceSlices(
    std::span<const client::DeviceSlice> slices) {
  std::vector<client::DeviceRead> outcomes(slices.size(), client::DeviceRead::kUnread);
  std::vector<client::DeviceSlice> wanted;
  std::vector<size_t> indices;
  for (size_t i = 0; i < slices.size(); ++i) {
    const SliceInfo& slice = slices[i].slice;
    if (!Wanted(slice) || !SameHeads(slice) || !Check(slice).ok()) continue;
    wanted.push_back(slices[i]);
    indices.push_back(i);
  }
  const std::vector<client::DeviceRead> read = device_->Read(wanted, first_);
  for (size_t i = 0; i < wanted.size(); ++i) {
    outcomes[indices[i]] = read[i];
    if (read[i] != client::DeviceRead::kGood) continue;
    const SliceInfo& slice = wanted[i].slice;
    bytes_ += slice.slice_bytes;
    MarkHeads(slice);
    on_device_.push_back(slice.block);
  }
  return outcomes;
}

Status BlockSink::Assemble(const SliceInfo& slice, std::span<const std::byte> data) {
  auto it = assemblies_.find({slice.block, slice.layer});
  if (it == assemblies_.end()) {
    const uint64_t bytes = LayerBytes(slice.layer);
    std::span<std::byte> place = Of(slice).Contiguous(Offset(slice.layer), bytes);
    std::vector<std::byte> own;
    if (place.empty()) {
      own.resize(bytes);
      place = own;
    }
    const format::PartRect layer = {static_cast<uint16_t>(slice.layer),
                                    static_cast<uint16_t>(slice.layer + 1), want_.head_begin,
                                    want_.head_end};
    CAIRN_ASSIGN_OR_RETURN(auto assembler, client::RectAssembler::Create(*layout_, layer, place));
    it = assemblies_
             .emplace(std::pair(slice.block, slice.layer),
                      Assembly{std::move(own), std::move(assembler)})
             .first;
  }
  Assembly& assembly = it->second;
  CAIRN_RETURN_IF_ERROR(assembly.assembler.Add(slice.part, slice.layer, data));
  if (assembly.assembler.Complete()) {
    Scatter(Of(slice), Offset(slice.layer), assembly.own);
    assemblies_.erase(it);
  }
  return OkStatus();
}

void BlockSink::Scatter(const Block& block, uint64_t offset, std::span<const std::byte> data) {
  block.ForEachRun(offset, data.size(), [&](std::span<std::byte> run, uint64_t done) {
    std::memcpy(run.data(), data.data() + done, run.size());
  });
}

void BlockSink::MarkHeads(const SliceInfo& slice) {
  const size_t block = slice.block - first_;
  const uint32_t heads = want_.head_end - want_.head_begin;
  const size_t row = block * want_.Cells() + size_t{slice.layer - want_.layer_begin} * heads;
  for (uint32_t head = std::max(slice.part.head_begin, want_.head_begin);
       head < std::min(slice.part.head_end, want_.head_end); ++head) {
    const size_t cell = row + (head - want_.head_begin);
    if (filled_[cell]) continue;
    filled_[cell] = true;
    --missing_cells_[block];
  }
}

void BlockSink::OnBlockFailed(uint32_t block, MissReason reason) {
  if (block >= first_ && block - first_ < failed_.size()) failed_[block - first_] = reason;
}

std::map<uint32_t, MissReason> BlockSink::Failed(MissReason open) const {
  std::map<uint32_t, MissReason> failed;
  for (size_t i = 0; i < into_.size(); ++i) {
    if (missing_cells_[i] == 0) continue;
    failed.emplace(first_ + static_cast<uint32_t>(i), failed_[i].value_or(open));
  }
  return failed;
}

uint32_t BlockSink::prefix() const {
  return static_cast<uint32_t>(
      std::find_if(missing_cells_.begin(), missing_cells_.end(), [](uint32_t n) { return n > 0; }) -
      missing_cells_.begin());
}

}  // namespace cairn::python
