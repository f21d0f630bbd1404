#include "services/worker/compute/device/device_transformer.h"

#include "cairn/kernels/batch/slice_table.h"
#include "common/config/config.h"
#include "common/log/log.h"
#include "services/worker/compute/chunk_check.h"
#include "services/worker/compute/device/device_page_encoder.h"
#include "services/worker/compute/device/device_pass.h"
#include "services/worker/compute/device/slice_decoder.h"

namespace cairn::worker {
namespace {

// Limit for one call. On a device one launch has many rows: few rows leave it idle.
constexpr int64_t kMaxRows = 1024;

Status CheckShapes(const model::Hyperparameters& hp, int32_t block_tokens) {
  if (hp.head_dim != 64 && hp.head_dim != 128) {
    return InvalidArgument("model on a device: head size {}, expected 64 or 128", hp.head_dim);
  }
  if (hp.hidden % 8 != 0 || hp.ffn % 8 != 0) {
    return InvalidArgument("model on a device: widths {} and {}, expected multiples of 8",
                           hp.hidden, hp.ffn);
  }
  if (block_tokens % 16 != 0) {
    return InvalidArgument("transformer option 'block_tokens': got {}, expected a multiple of 16",
                           block_tokens);
  }
  return OkStatus();
}

class DeviceTransformer final : public Transformer {
 public:
  DeviceTransformer(const Options& options, const KvLayout& layout, int threads,
                    int64_t max_context, int64_t max_rows, std::string numerics_id)
      : device_(options.device),
        layout_(layout),
        max_context_(max_context),
        max_rows_(max_rows),
        graphs_(options.device_graphs),
        numerics_id_(std::move(numerics_id)),
        pool_(threads) {}

  Status Load(const model::Model& model, int64_t kv_bytes,
              const kernels::batch::ForwardKernels& kernels) {
    CAIRN_ASSIGN_OR_RETURN(weights_, DeviceWeights::Load(model, max_context_, device_, kernels));
    const int64_t slots = kv_bytes / static_cast<int64_t>(layout_.page_bytes());
    if (slots < 1) {
      return InvalidArgument("device_kv: got {}, expected at least {}",
                             config::FormatBytes(static_cast<uint64_t>(kv_bytes)),
                             config::FormatBytes(layout_.page_bytes()));
    }
    CAIRN_ASSIGN_OR_RETURN(mirror_, KvMirror::Create(device_, layout_, slots));
    const auto found =
        device_->Kernels(kernels::batch::kSliceTableName, kernels::batch::kSliceTableVersion);
    const auto* const slices =
        found.ok() ? static_cast<const kernels::batch::SliceTable*>(*found) : nullptr;
    CAIRN_ASSIGN_OR_RETURN(pass_, DevicePass::Create({.model = model,
                                                      .weights = *weights_,
                                                      .kernels = kernels,
                                                      .device = device_,
                                                      .kv = layout_,
                                                      .max_rows = max_rows_,
                                                      .mirror = *mirror_,
                                                      .graphs = graphs_,
                                                      .slices = slices}));
    if (slices == nullptr) {
      log::Info("codecs_on_cpu", {{"reason", Message(found.status())}});
      return OkStatus();
    }
    CAIRN_ASSIGN_OR_RETURN(decoder_, SliceDecoder::Create(device_, layout_, *slices, *mirror_));
    CAIRN_ASSIGN_OR_RETURN(encoder_,
                           DevicePageEncoder::Create(device_, layout_, *slices, *mirror_));
    return OkStatus();
  }

  Status Forward(std::span<const SequenceChunk> chunks) override {
    CAIRN_RETURN_IF_ERROR(device_->LossStatus());
    CAIRN_RETURN_IF_ERROR(CheckChunks(chunks, {.layout = layout_,
                                               .max_rows = max_rows_,
                                               .max_wide_rows = max_rows_,
                                               .max_context = max_context_,
                                               .vocab = vocab(),
                                               .takes_earlier = false}));
    if (chunks.empty()) return OkStatus();
    CAIRN_RETURN_IF_ERROR(pass_->Run(chunks));
    for (const SequenceChunk& c : chunks) {
      c.sequence->SetLength(c.sequence->length() + std::ssize(c.tokens));
    }
    return OkStatus();
  }

  int64_t max_rows() const override { return max_rows_; }
  int64_t max_wide_rows() const override { return max_rows_; }
  const KvLayout& kv_layout() const override { return layout_; }
  int32_t vocab() const override { return static_cast<int32_t>(weights_->output().outputs); }
  int threads() const override { return pool_.threads(); }
  kernels::ThreadPool& thread_pool() override { return pool_; }
  const std::string& numerics_id() const override { return numerics_id_; }
  SliceLoader* slice_loader() override { return decoder_.get(); }
  PageEncoder* page_encoder() override { return encoder_.get(); }
  GraphStats graph_stats() const override { return pass_->graph_stats(); }

 private:
  const std::shared_ptr<device::Device> device_;
  const KvLayout layout_;
  const int64_t max_context_;
  const int64_t max_rows_;
  const bool graphs_;
  const std::string numerics_id_;
  kernels::ThreadPool pool_;  // For what runs between passes.
  std::unique_ptr<DeviceWeights> weights_;
  std::unique_ptr<KvMirror> mirror_;
  std::unique_ptr<DevicePass> pass_;
  // Null: the library has no kernels for that.
  std::unique_ptr<SliceDecoder> decoder_;
  std::unique_ptr<DevicePageEncoder> encoder_;
};

}  // namespace

Result<std::unique_ptr<Transformer>> MakeDeviceTransformer(const model::Model& model,
                                                           const Transformer::Options& options,
                                                           int threads, int64_t max_context) {
  const model::Hyperparameters& hp = model.hp();
  CAIRN_RETURN_IF_ERROR(CheckShapes(hp, options.block_tokens));
  if (options.arithmetic == Arithmetic::kFloat32) {
    return InvalidArgument(
        "transformer option 'arithmetic': got float32, expected fast: a device multiplies in "
        "bfloat16");
  }
  CAIRN_ASSIGN_OR_RETURN(const void* const table,
                         options.device->Kernels(kernels::batch::kForwardTableName,
                                                 kernels::batch::kForwardTableVersion));
  const auto& kernels = *static_cast<const kernels::batch::ForwardKernels*>(table);
  const KvLayout layout{.layers = hp.layers,
                        .kv_heads = hp.kv_heads,
                        .head_dim = hp.head_dim,
                        .block_tokens = options.block_tokens};
  const device::DeviceInfo& info = options.device->info();
  // The facts that decide last bits: the kernels, their version, and the family that they were
  // compiled for.
  std::string numerics = fmt::format("{}-{}{}-{}", kernels.name, info.family_major,
                                     info.family_minor, kernels::batch::kForwardTableVersion);
  auto transformer = std::make_unique<DeviceTransformer>(
      options, layout, threads, max_context, kMaxRows / options.block_tokens * options.block_tokens,
      std::move(numerics));
  CAIRN_RETURN_IF_ERROR(transformer->Load(model, options.device_kv_bytes, kernels));
  return transformer;
}

}  // namespace cairn::worker
