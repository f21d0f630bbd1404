#pragma once
// One pass of a list of chunks through all layers. Transformer checks the input; here it is right.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/include/cairn/kernels/backend.h"
#include "kernels/include/cairn/kernels/thread_pool.h"
#include "services/common/status/status.h"
#include "services/worker/engine/packed_weights.h"
#include "services/worker/engine/transformer.h"
#include "services/worker/engine/workspace.h"

namespace cairn::worker {

class ForwardPass {
 public:
  // References must outlive the pass.
  struct Setup {
    const Model& model;
    const PackedWeights& weights;
    const kernels::Backend& backend;
    bool fast;
    KvLayout kv;
    int64_t max_rows;
  };

  ForwardPass(const Setup& setup, kernels::ThreadPool* pool);

  Status Run(std::span<const SequenceChunk> chunks);

 private:
  // A chunk's rows in the workspace. Rows of prefill chunks come first.
  struct Rows {
    const SequenceChunk* chunk;
    int64_t first_row;
    int64_t rows;
    int64_t first_position;
  };
  // An output of a product: y (+)= w * input, row stride in numbers.
  struct Output {
    const kernels::PackedMatrix* w;
    float* y;
    int64_t y_stride;
  };

  void Arrange(std::span<const SequenceChunk> chunks);
  void Embed();
  // Normalises x into ws_.normed and prepares it as an input.
  void Normalise(const float* x, const float* weight, int64_t rows);
  // Makes the forms of rows [begin, end) that the products will read.
  void PrepareRows(MatrixInput* input, int64_t begin, int64_t end);
  // Computes panels [begin, end) of one product for all rows.
  void Product(const Output& out, MatrixInput* input, int64_t begin, int64_t end, bool accumulate,
               int thread);
  void Products(std::span<const Output> outputs, MatrixInput* input, bool accumulate);
  void RotateAndStore(int layer);
  void Attend(int layer);
  void FeedForward(const PackedLayer& w);
  void Logits();

  kernels::PagedKv View(const KvSequence& sequence, int layer) const;
  int64_t PanelsPerPiece(int64_t panels) const;

  const Hyperparameters& hp_;
  const Tensor& embedding_;
  const PackedWeights& weights_;
  const kernels::Backend& backend_;
  const bool bf16_gemm_;
  const bool bf16_attention_;
  const bool integer_decode_;
  const KvLayout kv_;
  kernels::ThreadPool& pool_;
  Workspace ws_;

  // Of the current call.
  std::vector<Rows> runs_;
  int64_t rows_ = 0;
  int64_t prefill_rows_ = 0;
};

}  // namespace cairn::worker
