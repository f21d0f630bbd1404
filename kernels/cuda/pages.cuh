#pragma once
// Pages of an engine to blocks and back: one launch for all layers. Blocks are (parts of a piece,
// piece, block); a thread has four loads of 16 bytes in flight.

#include "kernels/cuda/batch.cuh"

namespace cairn::kernels::cuda {

constexpr int kPageThreads = 256;
constexpr int kPageLoads = 4;
constexpr int kMostPieces = 512;
constexpr int kMostPageBlocks = 4096;

// Some pieces of some blocks, by value.
struct PageBatch {
  std::byte* blocks = nullptr;  // The blocks of the first piece in the list.
  uint64_t block_stride = 0;
  uint64_t stride = 0;
  uint32_t piece_bytes = 0;
  bool bfloat16_pages = false;
  uint32_t* faults = nullptr;
  std::byte* pieces[kMostPieces];
  uint32_t index[kMostPageBlocks];
};
static_assert(sizeof(PageBatch) <= kMostParameterBytes);

template <bool kGather>
CAIRN_DEVICE void MovePages(const PageBatch& batch) {
  const uint32_t piece = blockIdx.y, block = blockIdx.z;
  auto* const page =
      Global(reinterpret_cast<uint4*>(batch.pieces[piece] + batch.index[block] * batch.stride));
  auto* const flat = Global(reinterpret_cast<uint4*>(batch.blocks + block * batch.block_stride +
                                                     uint64_t{piece} * batch.piece_bytes));
  const uint4* const from = kGather ? page : flat;
  uint4* const to = kGather ? flat : page;
  const uint32_t chunks = batch.piece_bytes / 16;
  uint32_t faults = 0;
  for (uint32_t i = blockIdx.x * kPageThreads * kPageLoads + threadIdx.x; i < chunks;
       i += gridDim.x * kPageThreads * kPageLoads) {
    uint4 v[kPageLoads];
    CAIRN_UNROLL
    for (uint32_t k = 0; k < kPageLoads; ++k) {
      if (i + k * kPageThreads < chunks) v[k] = from[i + k * kPageThreads];
    }
    CAIRN_UNROLL
    for (uint32_t k = 0; k < kPageLoads; ++k) {
      if (i + k * kPageThreads >= chunks) continue;
      to[i + k * kPageThreads] = kGather ? HalvesOf(v[k], batch.bfloat16_pages, &faults)
                                         : NumbersOf(v[k], batch.bfloat16_pages);
    }
  }
  if (faults != 0) atomicOr(Global(batch.faults), faults);
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(256)
    cairn_gather_pages(CAIRN_PARAMETER(cairn::kernels::cuda::PageBatch) batch) {
  cairn::kernels::cuda::MovePages<true>(batch);
}
CAIRN_KERNEL void __launch_bounds__(256)
    cairn_scatter_pages(CAIRN_PARAMETER(cairn::kernels::cuda::PageBatch) batch) {
  cairn::kernels::cuda::MovePages<false>(batch);
}
