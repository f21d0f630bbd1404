#pragma once
// The forward pass's operations on batches (cairn/kernels/batch) as launches, and their table.
// Whoever launches is a class that is made of the stream of a call:
//
//   struct Launcher {
//     void* stream;
//     template <...> int operator()(kernel, const Shape&, const Arguments&...) const;  // 0: done
//   };
//   const batch::ForwardKernels table = ForwardTable<Launcher>("cuda");

#include "cairn/kernels/batch/forward_kernels.h"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/rows.cuh"
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

template <typename Launcher>
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
  return k;
}

}  // namespace cairn::kernels::cuda
