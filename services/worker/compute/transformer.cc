#include "services/worker/compute/transformer.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "services/worker/compute/chunk_check.h"
#include "services/worker/compute/device/device_transformer.h"
#include "services/worker/compute/forward_pass.h"

namespace cairn::worker {
namespace {

// Limit for one call. More rows make unpacking the weights cheaper per row, fewer keep activations
// in L2.
constexpr int64_t kMaxRows = 256;
// Slabs of a wide chunk. Bounds its residual stream: 16 x 256 rows of 576 floats are 9 MiB.
constexpr int64_t kMaxSlabs = 16;

Status CheckOption(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return OkStatus();
  return InvalidArgument("transformer option '{}': got {}, expected {} to {}", field, value, low,
                         high);
}

class CpuTransformer final : public Transformer {
 public:
  CpuTransformer(const model::Model& model, const Options& options,
                 const kernels::ForwardKernels& kernels, int threads, int64_t max_context)
      : kernels_(kernels),
        layout_{.layers = model.hp().layers,
                .kv_heads = model.hp().kv_heads,
                .head_dim = model.hp().head_dim,
                .block_tokens = options.block_tokens},
        max_context_(max_context),
        max_rows_(kMaxRows / options.block_tokens * options.block_tokens),
        numerics_id_(fmt::format("{}-{}-1",
                                 options.arithmetic == Arithmetic::kFast ? "fast" : "float32",
                                 kernels_.name)),
        pool_(threads),
        weights_(PackWeights(model, &pool_)),
        pass_({.model = model,
               .weights = weights_,
               .kernels = kernels_,
               .fast = options.arithmetic == Arithmetic::kFast,
               .kv = layout_,
               .max_rows = max_rows_},
              &pool_) {}

  Status Forward(std::span<const SequenceChunk> chunks) override {
    CAIRN_RETURN_IF_ERROR(CheckChunks(chunks, {.layout = layout_,
                                               .max_rows = max_rows_,
                                               .max_wide_rows = max_wide_rows(),
                                               .max_context = max_context_,
                                               .vocab = vocab()}));
    CAIRN_RETURN_IF_ERROR(pass_.Run(chunks));
    for (const SequenceChunk& c : chunks) {
      c.sequence->SetLength(c.sequence->length() + static_cast<int64_t>(c.tokens.size()));
    }
    return OkStatus();
  }

  int64_t max_rows() const override { return max_rows_; }
  int64_t max_wide_rows() const override { return kMaxSlabs * max_rows_; }
  const KvLayout& kv_layout() const override { return layout_; }
  int32_t vocab() const override { return static_cast<int32_t>(weights_.output.rows()); }
  int threads() const override { return pool_.threads(); }
  kernels::ThreadPool& thread_pool() override { return pool_; }
  const std::string& numerics_id() const override { return numerics_id_; }
  Memory memory() const override {
    return {.weights = weights_.bytes(), .compute = pass_.MostBytes(max_wide_rows())};
  }

 private:
  const kernels::ForwardKernels& kernels_;
  const KvLayout layout_;
  const int64_t max_context_;
  const int64_t max_rows_;
  const std::string numerics_id_;
  kernels::ThreadPool pool_;
  const PackedWeights weights_;
  ForwardPass pass_;
};

}  // namespace

Result<std::unique_ptr<Transformer>> Transformer::Create(const model::Model& model,
                                                         const Options& options) {
  const model::Hyperparameters& hp = model.hp();
  CAIRN_RETURN_IF_ERROR(CheckOption("threads", options.threads, 0, 1024));
  CAIRN_RETURN_IF_ERROR(CheckOption("block_tokens", options.block_tokens, 16, 256));
  CAIRN_RETURN_IF_ERROR(CheckOption("max_context", options.max_context, 0, 1 << 24));
  if (hp.kv_heads <= 0 || hp.heads % hp.kv_heads != 0) {
    return InvalidArgument("{} query heads, expected a multiple of the {} KV heads", hp.heads,
                           hp.kv_heads);
  }
  if (hp.head_dim < 2 || hp.head_dim > 256 || hp.rope_dim > hp.head_dim || hp.rope_dim % 2 != 0) {
    return InvalidArgument(
        "head size {} with {} rotated channels, expected 2 to 256, of which an "
        "even number is rotated",
        hp.head_dim, hp.rope_dim);
  }
  const kernels::Backend& backend =
      options.backend != nullptr ? *options.backend : kernels::BestCpuBackend();
  if (backend.forward == nullptr || !backend.runs_inline) {
    return InvalidArgument(
        "transformer option 'backend': got {}, expected one that has kernels of the forward pass "
        "and runs inline",
        backend.name);
  }
  int threads = options.threads;
  if (threads == 0) threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int64_t context = options.max_context == 0 ? hp.context : options.max_context;
  if (options.device != nullptr) return MakeDeviceTransformer(model, options, threads, context);
  return std::unique_ptr<Transformer>(
      std::make_unique<CpuTransformer>(model, options, *backend.forward, threads, context));
}

}  // namespace cairn::worker
