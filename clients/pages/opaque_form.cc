#include <algorithm>
#include <utility>
#include <vector>

#include "clients/pages/block_form.h"
#include "common/device/launched.h"
#include "common/log/log.h"

namespace cairn::pages {
namespace {

using kernels::MovePagesArgs;

constexpr uint64_t kAlignment = 16;

class CopiedBlocks final : public BlockForm {
 public:
  explicit CopiedBlocks(EnginePages pages)
      : pages_(std::move(pages)), bytes_(pages_.block_bytes()) {}

  uint32_t blocks() const override { return pages_.blocks; }
  uint64_t flat_bytes() const override { return bytes_; }
  bool runs_kernels() const override { return false; }
  Status Gather(device::Stream* stream, std::span<const BlockCopy> blocks) const override {
    return stream->Copy("gather of a save", GatherTasks(pages_, blocks));
  }
  Status Scatter(device::Stream* stream, std::span<const BlockCopy> blocks) const override {
    return stream->Copy("scatter of a load", ScatterTasks(pages_, blocks));
  }

 private:
  const EnginePages pages_;
  const uint64_t bytes_;
};

class MovedBlocks final : public BlockForm {
 public:
  MovedBlocks(const EnginePages& pages, const kernels::batch::SliceTable& kernels)
      : kernels_(kernels), blocks_(pages.blocks), bytes_(pages.block_bytes()) {
    for (const PageRun& run : pages.runs) {
      pieces_.push_back(reinterpret_cast<std::byte*>(run.address));
    }
    stride_ = pages.runs.front().stride;
    piece_bytes_ = static_cast<uint32_t>(pages.runs.front().bytes);
  }

  static bool CanMove(const EnginePages& pages) {
    const PageRun& first = pages.runs.front();
    return pages.runs.size() > 1 && first.bytes <= UINT32_MAX && first.bytes % kAlignment == 0 &&
           first.stride % kAlignment == 0 &&
           std::all_of(pages.runs.begin(), pages.runs.end(), [&](const PageRun& run) {
             return run.bytes == first.bytes && run.stride == first.stride &&
                    run.address % kAlignment == 0;
           });
  }

  uint32_t blocks() const override { return blocks_; }
  uint64_t flat_bytes() const override { return bytes_; }
  bool runs_kernels() const override { return true; }
  Status Gather(device::Stream* stream, std::span<const BlockCopy> blocks) const override {
    return Launch(stream, "gather of a save", blocks, kernels_.gather_pages);
  }
  Status Scatter(device::Stream* stream, std::span<const BlockCopy> blocks) const override {
    return Launch(stream, "scatter of a load", blocks, kernels_.scatter_pages);
  }

 private:
  // A launch for each row of flat blocks at equal distances. Slots are given out lowest first, so
  // that is mostly one.
  Status Launch(device::Stream* stream, const char* what, std::span<const BlockCopy> blocks,
                kernels::batch::LaunchOfSlices<MovePagesArgs> launch) const {
    std::vector<uint32_t> index;
    uint64_t distance = bytes_;
    for (size_t i = 0; i < blocks.size(); ++i) {
      index.push_back(blocks[i].block);
      const uint64_t next = i + 1 < blocks.size() ? blocks[i + 1].flat : 0;
      if (next >= blocks[i].flat + bytes_) {
        if (index.size() == 1) distance = next - blocks[i].flat;
        if (next == blocks[i].flat + distance) continue;
      }
      const uint64_t first = blocks[i + 1 - index.size()].flat;
      const MovePagesArgs args = {.pages = {.pieces = pieces_.data(),
                                            .piece_count = static_cast<int64_t>(pieces_.size()),
                                            .index = index.data(),
                                            .blocks = static_cast<int64_t>(index.size()),
                                            .stride = stride_,
                                            .piece_bytes = piece_bytes_},
                                  .blocks = reinterpret_cast<std::byte*>(first),
                                  .block_stride = distance};
      CAIRN_RETURN_IF_ERROR(
          device::Launched(what, launch(stream->native(), args), *stream->device()));
      index.clear();
    }
    return OkStatus();
  }

  const kernels::batch::SliceTable& kernels_;
  const uint32_t blocks_;
  const uint64_t bytes_;
  std::vector<std::byte*> pieces_;
  uint64_t stride_ = 0;
  uint32_t piece_bytes_ = 0;
};

}  // namespace

const kernels::batch::SliceTable* SliceKernelsOf(device::Device* device) {
  const auto table =
      device->Kernels(kernels::batch::kSliceTableName, kernels::batch::kSliceTableVersion);
  if (table.ok()) return static_cast<const kernels::batch::SliceTable*>(*table);
  log::Info("no_kernels_for_pages", {{"reason", Message(table.status())}});
  return nullptr;
}

Result<std::unique_ptr<BlockForm>> OpaqueForm(EnginePages pages,
                                              const kernels::batch::SliceTable* kernels) {
  CAIRN_RETURN_IF_ERROR(Validate(pages));
  if (kernels != nullptr && MovedBlocks::CanMove(pages)) {
    return std::make_unique<MovedBlocks>(pages, *kernels);
  }
  return std::make_unique<CopiedBlocks>(std::move(pages));
}

}  // namespace cairn::pages
