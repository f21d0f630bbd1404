#include "services/worker/compute/workspace.h"

#include <algorithm>

namespace cairn::worker {
namespace {

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Tiles read whole blocks of rows.
size_t Padded(int64_t rows, int64_t stride) {
  return static_cast<size_t>(RoundUp(rows, 32) * stride);
}

size_t ScratchBytes(const model::Hyperparameters& hp) {
  const int64_t group = hp.heads / hp.kv_heads;
  const int64_t widest = std::max({hp.hidden, hp.ffn, hp.heads * hp.head_dim});
  const size_t bytes =
      std::max({kernels::GemmScratchBytes(widest),
                kernels::AttentionScratchBytes(Workspace::kAttentionRows, group, hp.head_dim),
                kernels::AttentionPartScratchBytes(Workspace::kSplitTokens,
                                                   Workspace::kSharedRows * group, hp.head_dim)});
  // Two threads never share a page.
  return (bytes + 4095) / 4096 * 4096;
}

}  // namespace

MatrixInput::MatrixInput(int64_t max_rows, int64_t w)
    : width(w),
      stride(RoundUp(w, kernels::kStepColumns)),
      activation_stride(static_cast<int64_t>(kernels::ActivationBytes(w))),
      x(Padded(max_rows, stride)),
      bf16(Padded(max_rows, stride)),
      activation(Padded(max_rows, activation_stride)) {}

Workspace::Workspace(const model::Hyperparameters& hp, int64_t max_rows, int threads)
    : x(Padded(max_rows, hp.hidden)),
      normed(max_rows, hp.hidden),
      attended(max_rows, int64_t{hp.heads} * hp.head_dim),
      activated(max_rows, hp.ffn),
      q(Padded(max_rows, int64_t{hp.heads} * hp.head_dim)),
      k(Padded(max_rows, int64_t{hp.kv_heads} * hp.head_dim)),
      v(Padded(max_rows, int64_t{hp.kv_heads} * hp.head_dim)),
      up(Padded(max_rows, activated.stride)),
      cosine(Padded(max_rows, hp.rope_dim / 2)),
      sine(Padded(max_rows, hp.rope_dim / 2)),
      scratch_bytes(ScratchBytes(hp)),
      scratch(scratch_bytes * static_cast<size_t>(threads)) {}

size_t Workspace::bytes() const {
  return x.bytes() + normed.bytes() + attended.bytes() + activated.bytes() + q.bytes() + k.bytes() +
         v.bytes() + up.bytes() + cosine.bytes() + sine.bytes() + scratch.bytes() +
         logits.capacity() * sizeof(float);
}

size_t WideRows::Bytes(const model::Hyperparameters& hp, int64_t rows) {
  return (Padded(rows, hp.hidden) + 2 * Padded(rows, hp.rope_dim / 2)) * sizeof(float);
}

WideRows::WideRows(const model::Hyperparameters& hp, int64_t rows)
    : x(Padded(rows, hp.hidden)),
      cosine(Padded(rows, hp.rope_dim / 2)),
      sine(Padded(rows, hp.rope_dim / 2)) {}

}  // namespace cairn::worker
