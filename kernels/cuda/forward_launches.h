#pragma once
// The forward pass's operations on batches (cairn/kernels/batch) as launches, and their table.
// Whoever launches is a class that is made of the stream of a call:
//
//   struct Launcher {
//     void* stream;
//     template <...> int operator()(kernel, const Shape&, const Arguments&...) const;  // 0: done
//     // Only where kernels for compute capability 9.0a run: describes a matrix (device_sm90.h).
//     int MapRows(const void* base, int64_t rows, int64_t cols, int64_t box_rows,
//                 MatrixMap*) const;
//   };
//   const batch::ForwardKernels table = ForwardTable<Launcher, true>("cuda");

#include <limits>
#include <numeric>

#include "cairn/kernels/batch/forward_kernels.h"
#include "kernels/cuda/attention_sm90.cuh"
#include "kernels/cuda/decode_attention.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/prompt_attention.cuh"
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/shape.h"
#include "kernels/cuda/weights.cuh"

namespace cairn::kernels::cuda {

// How many blocks of `threads` threads, 8 numbers a thread, `n` numbers take.
constexpr unsigned BlocksOf8(int64_t n, int64_t threads) {
  return static_cast<unsigned>((n + 8 * threads - 1) / (8 * threads));
}

constexpr size_t kWarpsOfRowBytes = kRowThreads / kWarp * sizeof(float);

template <typename Launch>
int LaunchEmbed(Launch launch, const batch::EmbedArgs& a) {
  if (a.rows == 0 || a.cols == 0) return 0;
  const Shape shape{{static_cast<unsigned>(a.rows), BlocksOf8(a.cols, kWeightThreads), 1},
                    kWeightThreads};
  return launch(cairn_embed, shape, a, RowBytes(a.type, a.cols));
}

template <typename Launch>
int LaunchDequantise(Launch launch, const batch::DequantiseArgs& a) {
  if (a.rows == 0 || a.cols == 0) return 0;
  const Shape shape{{static_cast<unsigned>(a.rows), BlocksOf8(a.cols, kWeightThreads), 1},
                    kWeightThreads};
  return launch(cairn_dequantise, shape, a, RowBytes(a.type, a.cols));
}

template <typename Launch>
int LaunchRmsNorm(Launch launch, const batch::RmsNormArgs& a) {
  if (a.rows == 0) return 0;
  return launch(cairn_rms_norm,
                Shape{{static_cast<unsigned>(a.rows), 1, 1}, kRowThreads, kWarpsOfRowBytes}, a);
}

template <typename Launch>
int LaunchAdd(Launch launch, const batch::AddArgs& a) {
  if (a.n == 0) return 0;
  return launch(cairn_add, Shape{{BlocksOf8(a.n, kRowThreads), 1, 1}, kRowThreads}, a);
}

template <typename Launch>
int LaunchSwiGlu(Launch launch, const batch::SwiGluArgs& a) {
  if (a.rows == 0 || a.cols == 0) return 0;
  const Shape shape{{static_cast<unsigned>(a.rows), BlocksOf8(a.cols, kRowThreads), 1},
                    kRowThreads};
  return launch(cairn_swiglu, shape, a);
}

template <typename Launch>
int LaunchRotateAndStore(Launch launch, const batch::RotateAndStoreArgs& a) {
  if (a.rows == 0) return 0;
  return launch(cairn_rotate_and_store, Shape{{static_cast<unsigned>(a.rows), 1, 1}, kRopeThreads},
                a);
}

template <typename Launch>
int LaunchTurnKeys(Launch launch, const batch::TurnKeysArgs& a) {
  if (a.count == 0 || a.most_keys == 0) return 0;
  const auto parts = static_cast<unsigned>((a.most_keys + kTurnKeys - 1) / kTurnKeys);
  return launch(cairn_turn_keys, Shape{{static_cast<unsigned>(a.count), parts, 1}, kTurnThreads},
                a);
}

template <typename Launch>
int LaunchArgMax(Launch launch, const batch::ArgMaxArgs& a) {
  if (a.rows == 0) return 0;
  return launch(cairn_arg_max,
                Shape{{static_cast<unsigned>(a.rows), 1, 1}, kRowThreads, 2 * kWarpsOfRowBytes}, a);
}

// The answer to a launch that this file refuses itself: as cudaErrorInvalidValue.
constexpr int kInvalidValue = 1;

template <typename Launch>
int LaunchDecodeAttention(Launch launch, const batch::DecodeAttentionArgs& a) {
  if (a.rows == 0) return 0;
  const batch::KvForm& kv = a.kv;
  const int64_t slices = (kv.group + kDecodeQueries - 1) / kDecodeQueries;
  const Shape shape{
      {static_cast<unsigned>(a.most_splits), static_cast<unsigned>(kv.kv_heads * slices),
       static_cast<unsigned>(a.rows)},
      kDecodeThreads,
      kv.head_dim == 64 ? DecodeShape<64>::kSharedBytes : DecodeShape<128>::kSharedBytes};
  if (kv.head_dim != 64 && kv.head_dim != 128) return kInvalidValue;
  if (a.most_splits > 0) {
    const int error =
        launch(kv.head_dim == 64 ? cairn_attend_split_64 : cairn_attend_split_128, shape, a);
    if (error != 0) return error;
  }
  return launch(
      cairn_combine_splits,
      Shape{{static_cast<unsigned>(kv.kv_heads * kv.group), static_cast<unsigned>(a.rows), 1},
            kCombineThreads},
      a);
}

template <typename Launch>
int LaunchPromptAttention(Launch launch, const batch::PromptAttentionArgs& a) {
  if (a.count == 0 || a.most_rows == 0) return 0;
  const batch::KvForm& kv = a.kv;
  const dim3 blocks{static_cast<unsigned>((a.most_rows + kPromptRows - 1) / kPromptRows),
                    static_cast<unsigned>(kv.kv_heads * kv.group), static_cast<unsigned>(a.count)};
  switch (kv.head_dim) {
    case 64:
      return launch(cairn_attend_prompt_64,
                    Shape{blocks, kPromptThreads, PromptShape<64>::kSharedBytes}, a);
    case 128:
      return launch(cairn_attend_prompt_128,
                    Shape{blocks, kPromptThreads, PromptShape<128>::kSharedBytes}, a);
    default:
      return kInvalidValue;
  }
}

// A Launcher that describes matrices.
template <typename Launch>
int LaunchPooledPromptAttention(Launch launch, const batch::PooledPromptAttentionArgs& a) {
  const batch::PromptAttentionArgs& of = a.attention;
  if (of.count == 0 || of.most_rows == 0) return 0;
  const batch::KvForm& kv = of.kv;
  if (kv.head_dim != 64 && kv.head_dim != 128) return kInvalidValue;
  const int64_t rows = static_cast<int64_t>(a.pool_bytes) / (kv.head_dim * 2);
  if (rows > std::numeric_limits<int32_t>::max()) return kInvalidValue;
  Sm90Prompt prompt;
  prompt.attention = of;
  prompt.pool = reinterpret_cast<uintptr_t>(a.pool);
  prompt.page_box = std::gcd(kv.block_tokens, kSm90Keys);
  prompt.unit_box = std::gcd(kv.unit_rows, kSm90Keys);
  for (const auto& [box, map] :
       {std::pair(prompt.page_box, &prompt.pages), std::pair(prompt.unit_box, &prompt.units)}) {
    const int error = launch.MapRows(a.pool, rows, kv.head_dim, box, map);
    if (error != 0) return error;
  }
  const dim3 blocks{static_cast<unsigned>((of.most_rows + kSm90Rows - 1) / kSm90Rows),
                    static_cast<unsigned>(kv.kv_heads * kv.group), static_cast<unsigned>(of.count)};
  if (kv.head_dim == 64) {
    return launch(cairn_attend_pooled_prompt_64,
                  Shape{blocks, kSm90Threads, Sm90Shape<64>::kSharedBytes}, prompt);
  }
  return launch(cairn_attend_pooled_prompt_128,
                Shape{blocks, kSm90Threads, Sm90Shape<128>::kSharedBytes}, prompt);
}

template <typename Launch>
int LaunchGemm(Launch launch, const batch::GemmArgs& a) {
  if (a.rows == 0 || a.outputs == 0) return 0;
  const dim3 blocks{static_cast<unsigned>((a.rows + kGemmTile - 1) / kGemmTile),
                    static_cast<unsigned>((a.outputs + kGemmTile - 1) / kGemmTile), 1};
  return launch(cairn_gemm, Shape{blocks, kGemmThreads, kGemmSharedBytes}, a);
}

template <int kTiles, typename Launch, typename Kernel>
int LaunchFewRows(Launch launch, Kernel kernel, const batch::GemmArgs& a) {
  const dim3 blocks{static_cast<unsigned>((a.outputs + kFewOutputs - 1) / kFewOutputs),
                    static_cast<unsigned>((a.rows + kTiles * 8 - 1) / (kTiles * 8)), 1};
  return launch(kernel, Shape{blocks, kFewThreads, kFewSharedBytes<kTiles>}, a);
}

template <typename Launch>
int LaunchGemmFewRows(Launch launch, const batch::GemmArgs& a) {
  if (a.rows == 0 || a.outputs == 0) return 0;
  if (a.rows <= 8) return LaunchFewRows<1>(launch, cairn_gemm_8_rows, a);
  if (a.rows <= 16) return LaunchFewRows<2>(launch, cairn_gemm_16_rows, a);
  if (a.rows <= 32) return LaunchFewRows<4>(launch, cairn_gemm_32_rows, a);
  return LaunchFewRows<8>(launch, cairn_gemm_64_rows, a);
}

// kPooled: the hardware has compute capability 9.0a, and Launcher has MapRows.
template <typename Launcher, bool kPooled>
batch::ForwardKernels ForwardTable(const char* name) {
  batch::ForwardKernels k;
  k.name = name;
  k.embed = [](void* s, const batch::EmbedArgs& a) { return LaunchEmbed(Launcher{s}, a); };
  k.dequantise = [](void* s, const batch::DequantiseArgs& a) {
    return LaunchDequantise(Launcher{s}, a);
  };
  k.rms_norm = [](void* s, const batch::RmsNormArgs& a) { return LaunchRmsNorm(Launcher{s}, a); };
  k.add = [](void* s, const batch::AddArgs& a) { return LaunchAdd(Launcher{s}, a); };
  k.swiglu = [](void* s, const batch::SwiGluArgs& a) { return LaunchSwiGlu(Launcher{s}, a); };
  k.rotate_and_store = [](void* s, const batch::RotateAndStoreArgs& a) {
    return LaunchRotateAndStore(Launcher{s}, a);
  };
  k.turn_keys = [](void* s, const batch::TurnKeysArgs& a) {
    return LaunchTurnKeys(Launcher{s}, a);
  };
  k.arg_max = [](void* s, const batch::ArgMaxArgs& a) { return LaunchArgMax(Launcher{s}, a); };
  k.attend_decode = [](void* s, const batch::DecodeAttentionArgs& a) {
    return LaunchDecodeAttention(Launcher{s}, a);
  };
  k.attend_prompt = [](void* s, const batch::PromptAttentionArgs& a) {
    return LaunchPromptAttention(Launcher{s}, a);
  };
  if constexpr (kPooled) {
    k.attend_pooled_prompt = [](void* s, const batch::PooledPromptAttentionArgs& a) {
      return LaunchPooledPromptAttention(Launcher{s}, a);
    };
  }
  k.gemm = [](void* s, const batch::GemmArgs& a) { return LaunchGemm(Launcher{s}, a); };
  k.gemm_few_rows = [](void* s, const batch::GemmArgs& a) {
    return LaunchGemmFewRows(Launcher{s}, a);
  };
  return k;
}

}  // namespace cairn::kernels::cuda
