#include "tests/gpu/probe/products.h"

#include "cairn/kernels/batch/forward_kernels.h"
#include "tests/gpu/probe/blas.h"

namespace cairn::gpu {

using kernels::batch::ForwardKernels;
using kernels::batch::GemmArgs;

Result<ProductRates> MeasureProducts(Bench* bench) {
  const int64_t rows = bench->tiny() ? 16 : 4096, outputs = bench->tiny() ? 128 : 8192,
                cols = bench->tiny() ? 64 : 4096;
  // bfloat16 numbers of about 0.004.
  std::vector<uint16_t> numbers(static_cast<size_t>(cols));
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<uint16_t>(0x3b80 + i % 61 + (i % 2) * 0x8000);
  }
  const auto matrix = [&](int64_t n) -> Result<uint16_t*> {
    CAIRN_ASSIGN_OR_RETURN(uint16_t* const at, bench->AllocateOf<uint16_t>(n * cols));
    const auto first = reinterpret_cast<uint64_t>(at);
    const uint64_t row_bytes = numbers.size() * sizeof(uint16_t);
    CAIRN_RETURN_IF_ERROR(
        bench->Move(first, reinterpret_cast<uint64_t>(numbers.data()), row_bytes));
    CAIRN_RETURN_IF_ERROR(bench->Repeat(first, row_bytes, n));
    return at;
  };
  CAIRN_ASSIGN_OR_RETURN(const uint16_t* const a, matrix(rows));
  CAIRN_ASSIGN_OR_RETURN(const uint16_t* const w, matrix(outputs));
  CAIRN_ASSIGN_OR_RETURN(float* const y, bench->AllocateOf<float>(rows * outputs));
  const double operations =
      2.0 * static_cast<double>(rows) * static_cast<double>(outputs) * static_cast<double>(cols);
  ProductRates rates;
  CAIRN_ASSIGN_OR_RETURN(const ForwardKernels* const table,
                         bench->FindTable<ForwardKernels>(kernels::batch::kForwardTableName,
                                                          kernels::batch::kForwardTableVersion));
  if (table != nullptr) {
    const GemmArgs args{.a = a,
                        .w = w,
                        .y = y,
                        .rows = rows,
                        .outputs = outputs,
                        .cols = cols,
                        .a_stride = cols,
                        .w_stride = cols,
                        .y_stride = outputs};
    CAIRN_ASSIGN_OR_RETURN(const double seconds, bench->TimeKernel("gemm", [&] {
      return table->gemm(bench->stream().native(), args);
    }));
    rates.ours = operations / seconds;
  }
  if (bench->tiny()) {
    rates.why_no_blas = "not on a fake device";
    return rates;
  }
  auto blas = Blas::Open(bench->stream().native());
  if (!blas.ok()) {
    rates.why_no_blas = Message(blas.status());
    return rates;
  }
  auto* const halves = reinterpret_cast<uint16_t*>(y);
  CAIRN_ASSIGN_OR_RETURN(const double seconds, bench->TimeKernel("cublasGemmEx", [&] {
    return (*blas)->Gemm(a, w, halves, static_cast<int>(rows), static_cast<int>(outputs),
                         static_cast<int>(cols));
  }));
  rates.blas = operations / seconds;
  return rates;
}

}  // namespace cairn::gpu
