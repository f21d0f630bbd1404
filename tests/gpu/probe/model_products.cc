#include "tests/gpu/probe/model_products.h"

#include <algorithm>

namespace cairn::gpu {

using kernels::batch::ForwardKernels;

ModelShape ShapeOf(const Bench& bench) {
  if (bench.tiny()) {
    return {.layers = 2, .hidden = 64, .ffn = 64, .heads = 1, .kv_heads = 1, .head_dim = 64};
  }
  return {.layers = 32, .hidden = 4096, .ffn = 14336, .heads = 32, .kv_heads = 8, .head_dim = 128};
}

Result<uint16_t*> ModelProducts::Matrix(int64_t rows, int64_t cols) {
  // bfloat16 numbers of about 0.004.
  std::vector<uint16_t> row(static_cast<size_t>(cols));
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = static_cast<uint16_t>(0x3b80 + i % 61 + (i % 2) * 0x8000);
  }
  CAIRN_ASSIGN_OR_RETURN(uint16_t* const at, bench_.AllocateOf<uint16_t>(rows * cols));
  const auto first = reinterpret_cast<uint64_t>(at);
  const uint64_t bytes = row.size() * sizeof(uint16_t);
  CAIRN_RETURN_IF_ERROR(bench_.Move(first, reinterpret_cast<uint64_t>(row.data()), bytes));
  CAIRN_RETURN_IF_ERROR(bench_.Repeat(first, bytes, rows));
  return at;
}

Result<std::unique_ptr<ModelProducts>> ModelProducts::Make(Bench* bench, int64_t rows, By by) {
  std::unique_ptr<ModelProducts> made(new ModelProducts(bench, rows));
  if (by == By::kBlas) {
    if (bench->tiny()) return Errorf(StatusCode::kNotFound, "not on a fake device");
    CAIRN_ASSIGN_OR_RETURN(made->blas_, Blas::Open(bench->stream().native()));
  } else {
    CAIRN_ASSIGN_OR_RETURN(made->table_,
                           bench->FindTable<ForwardKernels>(kernels::batch::kForwardTableName,
                                                            kernels::batch::kForwardTableVersion));
    if (made->table_ == nullptr) {
      return Errorf(StatusCode::kNotFound, "the library has no table of the forward pass");
    }
  }
  const ModelShape shape = ShapeOf(*bench);
  const int64_t q_width = shape.heads * shape.head_dim;
  const int64_t qkv = q_width + 2 * shape.kv_heads * shape.head_dim;
  int64_t most_outputs = 0;
  for (const auto& [outputs, cols] :
       {std::pair(qkv, shape.hidden), std::pair(shape.hidden, q_width),
        std::pair(2 * shape.ffn, shape.hidden), std::pair(shape.hidden, shape.ffn)}) {
    CAIRN_ASSIGN_OR_RETURN(const uint16_t* const w, made->Matrix(outputs, cols));
    made->layer_.push_back({w, outputs, cols});
    most_outputs = std::max(most_outputs, outputs);
  }
  CAIRN_ASSIGN_OR_RETURN(made->a_, made->Matrix(rows, std::max(shape.ffn, shape.hidden)));
  CAIRN_ASSIGN_OR_RETURN(made->y_, bench->AllocateOf<float>(rows * most_outputs));
  return made;
}

Status ModelProducts::Launch() {
  const int64_t layers = ShapeOf(bench_).layers;
  for (int64_t i = 0; i < layers; ++i) {
    for (const Product& p : layer_) {
      const int error =
          blas_ != nullptr
              ? blas_->Gemm(a_, p.w, reinterpret_cast<uint16_t*>(y_), static_cast<int>(rows_),
                            static_cast<int>(p.outputs), static_cast<int>(p.cols))
              : table_->gemm(bench_.stream().native(), {.a = a_,
                                                        .w = p.w,
                                                        .y = y_,
                                                        .rows = rows_,
                                                        .outputs = p.outputs,
                                                        .cols = p.cols,
                                                        .a_stride = p.cols,
                                                        .w_stride = p.cols,
                                                        .y_stride = p.outputs});
      if (error != 0) return Errorf(StatusCode::kInternal, "a product: launch error {}", error);
    }
  }
  return OkStatus();
}

}  // namespace cairn::gpu
