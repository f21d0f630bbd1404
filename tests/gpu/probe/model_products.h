#pragma once
// The products of a forward pass in the shapes of an 8B model of the Llama family, and nothing else
// of it: a prefill is compared with them, and they are an engine's work while something else runs.

#include <memory>
#include <string>

#include "cairn/kernels/batch/forward_kernels.h"
#include "tests/gpu/probe/bench.h"
#include "tests/gpu/probe/blas.h"

namespace cairn::gpu {

// As cairn_seeded_model's 8b; of a tiny bench, the least that has all parts.
struct ModelShape {
  int64_t layers, hidden, ffn, heads, kv_heads, head_dim;
};
ModelShape ShapeOf(const Bench& bench);

// Thread-compatible. All layers have the same weights: those of one are larger than caches.
class ModelProducts {
 public:
  enum class By : uint8_t { kOurs, kBlas };
  // The products of `rows` tokens that are computed together. kNotFound: the bench's library has no
  // table of the forward pass, or there is no cuBLAS.
  static Result<std::unique_ptr<ModelProducts>> Make(Bench* bench, int64_t rows, By by);

  // Launches the products of all layers on the bench's stream.
  Status Launch();

 private:
  struct Product {
    const uint16_t* w = nullptr;
    int64_t outputs = 0, cols = 0;
  };
  ModelProducts(Bench* bench, int64_t rows) : bench_(*bench), rows_(rows) {}
  // One row of numbers for all of `rows` rows.
  Result<uint16_t*> Matrix(int64_t rows, int64_t cols);

  Bench& bench_;
  const int64_t rows_;
  const kernels::batch::ForwardKernels* table_ = nullptr;
  std::unique_ptr<Blas> blas_;
  std::vector<Product> layer_;
  const uint16_t* a_ = nullptr;
  float* y_ = nullptr;
};

}  // namespace cairn::gpu
