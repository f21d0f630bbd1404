#pragma once
// Puts the slices that a fetch brings into the caller's memory. Knows no Python: runs without the
// GIL.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/client/rect_assembler.h"
#include "clients/python/src/block_bytes.h"

namespace cairn::python {

// Memory of a GPU for the blocks of a fetch.
class DeviceTarget {
 public:
  virtual ~DeviceTarget() = default;
  virtual std::string uuid() const = 0;
  // Verified slices go to the GPU's memory. `first_block`: of the fetch. The outcome of each, in
  // order.
  virtual std::vector<client::DeviceRead> Read(std::span<const client::DeviceSlice> slices,
                                               uint32_t first_block) = 0;
};

// A slice with exactly the wanted heads goes directly to its place if that is contiguous in the
// caller's memory. Every other slice goes through a buffer. In an opaque layout only the part with
// exactly the rectangle is taken. Used by one thread.
class BlockSink final : public client::FetchSink {
 public:
  using Block = BlockBytes<std::byte>;

  // `into` is for the blocks from `first_block` on. INVALID_ARGUMENT, which names 'into[i]': the
  // size of a native block is not that of the rectangle. `layout` must outlive the sink. REQUIRES:
  // `want` lies in its grid.
  static Result<BlockSink> Create(const Layout& layout, const format::PartRect& want,
                                  uint32_t first_block, std::vector<Block> into);

  std::span<std::byte> Destination(const client::SliceInfo& slice) override;
  std::vector<std::span<std::byte>> Pieces(const client::SliceInfo& slice) override;
  Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override;
  void OnBlockFailed(uint32_t block, client::MissReason reason) override;

  // From now on, slices of an opaque layout that lie in memory of the target's GPU go there, and
  // not to `into`. It outlives the sink.
  void SetDevice(DeviceTarget* device) { device_ = device; }
  std::string WantsDevice() const override {
    return device_ == nullptr || layout_->IsNative() ? "" : device_->uuid();
  }
  Result<std::vector<client::DeviceRead>> OnDeviceSlices(
      std::span<const client::DeviceSlice> slices) override;
  // Blocks that went there.
  const std::vector<uint32_t>& on_device() const { return on_device_; }

  // Call it after the fetch. Every block is then complete or has a reason. `open` is the reason of
  // blocks that neither came completely nor failed.
  std::map<uint32_t, client::MissReason> Failed(client::MissReason open) const;
  // Leading blocks that are complete.
  uint32_t prefix() const;
  uint64_t bytes() const { return bytes_; }  // The bytes of slices that were taken.

 private:
  // Puts a layer together from parts with other heads.
  struct Assembly {
    std::vector<std::byte> own;  // Where the layer is not contiguous in the caller's memory.
    client::RectAssembler assembler;
  };

  BlockSink(const Layout& layout, const format::PartRect& want, uint32_t first_block,
            std::vector<Block> into);

  bool Wanted(const client::SliceInfo& slice) const;
  bool SameHeads(const client::SliceInfo& slice) const {
    return slice.part.head_begin == want_.head_begin && slice.part.head_end == want_.head_end;
  }
  const Block& Of(const client::SliceInfo& slice) const { return into_[slice.block - first_]; }
  uint64_t Offset(uint32_t layer) const { return offsets_[layer - want_.layer_begin]; }
  uint64_t LayerBytes(uint32_t layer) const { return Offset(layer + 1) - Offset(layer); }
  Status Check(const client::SliceInfo& slice) const;
  Status Assemble(const client::SliceInfo& slice, std::span<const std::byte> data);
  void Scatter(const Block& block, uint64_t offset, std::span<const std::byte> data);
  void MarkHeads(const client::SliceInfo& slice);

  const Layout* layout_;
  format::PartRect want_;
  uint32_t first_;
  std::vector<Block> into_;
  // The offsets of the wanted layers in a native block, and its end.
  std::vector<uint64_t> offsets_;
  // By block.
  std::vector<uint32_t> missing_cells_;
  std::vector<std::optional<client::MissReason>> failed_;
  std::vector<bool> filled_;  // By block, layer, head.
  std::map<std::pair<uint32_t, uint32_t>, Assembly> assemblies_;
  uint64_t bytes_ = 0;
  DeviceTarget* device_ = nullptr;
  std::vector<uint32_t> on_device_;
};

}  // namespace cairn::python
