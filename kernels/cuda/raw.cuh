#pragma once
// Rows in half precision: all of a raw head, or the sink of another one.

#include "kernels/cuda/batch.cuh"

namespace cairn::kernels::cuda {

// kSink: the rows of the sink, which must be finite. Otherwise all others, whatever bits they have.
template <bool kEncode, bool kSink>
CAIRN_DEVICE void CopyRows(const PlaneBatch& batch) {
  Head head;
  if (!OpenHead(batch, &head)) return;
  const int rows = kSink ? head.sink : head.rows, first = kSink ? 0 : head.sink;
  uint8_t* const bytes = kSink ? head.sink_bytes : head.bytes;
  uint32_t faults = 0;
  const auto check = [&](bool finite) {
    if (kSink && !finite) faults |= kEncode ? kNonFiniteFault : kScaleFault;
  };
  const int step = static_cast<int>(gridDim.x * blockDim.x);
  const int begin = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (head.dim % 8 == 0) {
    const int chunks = head.dim / 8;
    for (int i = begin; i < rows * chunks; i += step) {
      const int row = i / chunks, column = i % chunks * 8;
      uint8_t* const at = bytes + (static_cast<int64_t>(row) * head.dim + column) * 2;
      const uint4 halves = kEncode ? Load8Halves(head, first + row, column, &faults) : Load16(at);
      check(AllFinite(halves));
      if (kEncode) {
        Store16(at, halves);
      } else {
        Store8Halves(head, first + row, column, halves);
      }
    }
  } else {
    for (int i = begin; i < rows * head.dim; i += step) {
      uint8_t* const at = bytes + static_cast<int64_t>(i) * 2;
      const int token = first + i / head.dim, column = i % head.dim;
      uint32_t half = kEncode ? NumberAt(head, token, column) : Load2(at);
      if (kEncode && head.bfloat16) half = HalfOfBfloat16(half, &faults);
      check(IsFinite(half));
      if (!kEncode && head.bfloat16) half = ToBfloat16(FromHalf(half));
      Store2(kEncode ? at : AddressOf(head, token, column), half);
    }
  }
  Report(head, faults);
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(256)
    cairn_raw_encode(CAIRN_PARAMETER(cairn::kernels::cuda::PlaneBatch) batch) {
  cairn::kernels::cuda::CopyRows<true, false>(batch);
}
CAIRN_KERNEL void __launch_bounds__(256)
    cairn_raw_decode(CAIRN_PARAMETER(cairn::kernels::cuda::PlaneBatch) batch) {
  cairn::kernels::cuda::CopyRows<false, false>(batch);
}
CAIRN_KERNEL void __launch_bounds__(256)
    cairn_sink_encode(CAIRN_PARAMETER(cairn::kernels::cuda::PlaneBatch) batch) {
  cairn::kernels::cuda::CopyRows<true, true>(batch);
}
CAIRN_KERNEL void __launch_bounds__(256)
    cairn_sink_decode(CAIRN_PARAMETER(cairn::kernels::cuda::PlaneBatch) batch) {
  cairn::kernels::cuda::CopyRows<false, true>(batch);
}
