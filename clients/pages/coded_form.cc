#include "clients/pages/coded_form.h"

#include <utility>

#include "common/device/launched.h"

namespace cairn::pages {
namespace {

using kernels::SliceForm;
using kernels::SlicesArgs;
using kernels::SliceTask;

constexpr uint64_t kAlignment = 16;

class CodedBlocks final : public BlockForm {
 public:
  CodedBlocks(const BlockCodec& codec, CodedPages pages, const kernels::batch::SliceTable& kernels)
      : codec_(codec), pages_(std::move(pages)), kernels_(kernels), form_(codec.form()) {
    form_.bfloat16 = pages_.bfloat16;
    form_.k.head_stride = pages_.k.head;
    form_.k.token_stride = pages_.k.token;
    form_.v.head_stride = pages_.v.head;
    form_.v.token_stride = pages_.v.token;
  }

  uint32_t blocks() const override { return pages_.blocks; }
  uint64_t flat_bytes() const override { return codec_.MostBytes(); }
  uint64_t BytesAt(uint64_t first_position) const override {
    return codec_.BlockBytes(first_position);
  }
  bool runs_kernels() const override { return true; }
  bool has_faults() const override { return true; }
  Status Gather(device::Stream* stream, std::span<const BlockCopy> blocks) const override {
    return Launch(stream, "encoding of a save", blocks, kernels_.encode_slices);
  }
  Status Scatter(device::Stream* stream, std::span<const BlockCopy> blocks) const override {
    return Launch(stream, "decoding of a load", blocks, kernels_.decode_slices);
  }

 private:
  Status Launch(device::Stream* stream, const char* what, std::span<const BlockCopy> blocks,
                kernels::batch::LaunchOfSlices<SlicesArgs> launch) const {
    std::vector<SliceTask> tasks;
    tasks.reserve(blocks.size() * pages_.layers.size());
    for (const BlockCopy& block : blocks) {
      uint64_t encoded = block.flat;
      for (uint32_t i = 0; i < pages_.layers.size(); ++i) {
        const CodedLayer& layer = pages_.layers[i];
        SliceTask& task = tasks.emplace_back(codec_.Task(i, block.first_position));
        task.encoded = reinterpret_cast<std::byte*>(encoded);
        task.k = reinterpret_cast<uint16_t*>(layer.k + block.block * layer.block_stride);
        task.v = reinterpret_cast<uint16_t*>(layer.v + block.block * layer.block_stride);
        task.faults = reinterpret_cast<uint32_t*>(block.flat + fault_offset());
        encoded += task.bytes;
      }
    }
    return device::Launched(
        what, launch(stream->native(), {form_, tasks.data(), static_cast<int64_t>(tasks.size())}),
        *stream->device());
  }

  const BlockCodec codec_;
  const CodedPages pages_;
  const kernels::batch::SliceTable& kernels_;
  SliceForm form_;
};

Status Validate(const BlockCodec& codec, const CodedPages& pages) {
  if (pages.layers.size() != codec.shape().layers) {
    return InvalidArgument("field 'layers': got {}, expected the codec's {}", pages.layers.size(),
                           codec.shape().layers);
  }
  if (pages.blocks == 0) return InvalidArgument("field 'blocks': got 0, expected at least 1");
  for (size_t i = 0; i < pages.layers.size(); ++i) {
    const CodedLayer& layer = pages.layers[i];
    if (layer.k == 0 || layer.v == 0 || layer.k % kAlignment != 0 || layer.v % kAlignment != 0 ||
        layer.block_stride % kAlignment != 0) {
      return InvalidArgument(
          "field 'layers[{}]': got keys at {}, values at {}, blocks {} bytes apart, expected "
          "addresses and distances at multiples of {}",
          i, layer.k, layer.v, layer.block_stride, kAlignment);
    }
  }
  const std::pair<const char*, int64_t> strides[] = {{"k.head", pages.k.head},
                                                     {"k.token", pages.k.token},
                                                     {"v.head", pages.v.head},
                                                     {"v.token", pages.v.token}};
  for (const auto& [field, stride] : strides) {
    if (stride <= 0 || static_cast<uint64_t>(stride) * sizeof(uint16_t) % kAlignment != 0) {
      return InvalidArgument("field '{}': got {} numbers, expected a positive multiple of {}",
                             field, stride, kAlignment / sizeof(uint16_t));
    }
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<BlockForm>> CodedForm(const BlockCodec& codec, CodedPages pages,
                                             const kernels::batch::SliceTable& kernels) {
  CAIRN_RETURN_IF_ERROR(Validate(codec, pages));
  return std::make_unique<CodedBlocks>(codec, std::move(pages), kernels);
}

}  // namespace cairn::pages
