#pragma once
// The forward pass of a Llama-family model in operations on whole batches, for hardware on which a
// launch costs more than a row: an operation takes all rows, heads and sequences of a pass.
//
//   tokens -embed-> x -rms_norm-> (bfloat16) -gemm-> q, k, v -rotate_and_store-> q, pages
//                   x <--gemm (adds)-- (bfloat16) <--attend_decode, attend_prompt--'
//                   x -rms_norm-> -gemm-> gate, up -swiglu-> (bfloat16) -gemm (adds)-> x
//                   x -rms_norm (some rows)-> -gemm-> logits -arg_max-> tokens
//
// - Everything that a pointer names is the backend's memory, also the lists: places, sequences,
//   tables of pages. The structs themselves have only sizes, and bounds of the sizes in the lists.
//   So a recorded graph of launches can run again after the lists have changed.
// - The residual stream is float32, inputs of products are bfloat16, their sums and outputs
//   float32; queries, keys and values are binary16.
// - A row's result depends on that row alone: not on the others, not on their number, and not on
//   how a prompt is cut into chunks.
// - Pointers are aligned to 16 bytes if nothing else is said, and so are rows: strides count
//   numbers, and are multiples of 4 for float32 and of 8 for the others.
// - No rows: nothing is launched.
//
// An entry launches its operation on a stream (of CUDA: a cudaStream_t) and returns 0, or the error
// number of the launch. Later errors are reported by the stream. Entries may be called by any
// thread.

#include "cairn/kernels/batch/attention.h"
#include "cairn/kernels/batch/linear.h"
#include "cairn/kernels/batch/rows.h"

namespace cairn::kernels::batch {

// The name of this table for a driver of devices (common/device: Device::Kernels). The version
// grows with every change of the table or of the arguments.
inline constexpr char kForwardTableName[] = "forward";
inline constexpr char kForwardTable90aName[] = "forward-9.0a";  // For compute capability 9.0 only.
inline constexpr uint32_t kForwardTableVersion = 1;

template <typename Args>
using Op = int (*)(void* stream, const Args&);

// All entries are set that do not say "Null".
struct ForwardKernels {
  const char* name = nullptr;

  Op<EmbedArgs> embed = nullptr;
  Op<DequantiseArgs> dequantise = nullptr;
  Op<RmsNormArgs> rms_norm = nullptr;
  Op<AddArgs> add = nullptr;
  Op<SwiGluArgs> swiglu = nullptr;
  Op<RotateAndStoreArgs> rotate_and_store = nullptr;
  Op<TurnKeysArgs> turn_keys = nullptr;
  Op<ArgMaxArgs> arg_max = nullptr;

  Op<DecodeAttentionArgs> attend_decode = nullptr;
  Op<PromptAttentionArgs> attend_prompt = nullptr;
  // Null: the table is not for hardware with warp groups. Faster, with other last bits.
  Op<PooledPromptAttentionArgs> attend_pooled_prompt = nullptr;

  // A row has the same bits in every call of one entry, but not in both: choose by the phase (a
  // prompt, or tokens that are decoded), not by the number of rows.
  Op<GemmArgs> gemm = nullptr;           // Many rows: bound by arithmetic.
  Op<GemmArgs> gemm_few_rows = nullptr;  // Few rows: bound by the weights' bytes.
};

}  // namespace cairn::kernels::batch
