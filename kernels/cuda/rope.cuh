#pragma once
// Rotary position embedding: of fresh queries and keys on their way to the pages, and of stored
// keys that move to another position. Neighbouring threads take neighbouring channels.

#include "cairn/kernels/batch/rows.h"
#include "kernels/cuda/batch.cuh"

namespace cairn::kernels::cuda {

constexpr int kRopeThreads = 256;
constexpr int kTurnThreads = 128;
constexpr int kTurnKeys = 8;  // Keys of a block.

// Channel `c` of a head after its rotation; pair p is channels (p, p + half).
CAIRN_DEVICE float Rotated(const float* head, int c, int half, const float* cosine,
                           const float* sine) {
  const float x = *Global(head + c);
  if (c >= 2 * half) return x;
  const bool first = c < half;
  const int pair = first ? c : c - half;
  const float other = *Global(head + (first ? c + half : pair));
  const float turned = other * *Global(sine + pair);
  const float kept = x * *Global(cosine + pair);
  return first ? kept - turned : kept + turned;
}

CAIRN_DEVICE void RotateAndStoreRow(const batch::RotateAndStoreArgs& a) {
  const int64_t row = blockIdx.x;
  const batch::KvPlace place = *Global(a.places + row);
  const int half = a.rope_dim / 2, dim = a.head_dim;
  const float* const cosine = a.cosine + static_cast<int64_t>(place.position) * half;
  const float* const sine = a.sine + static_cast<int64_t>(place.position) * half;
  const int64_t in = row * a.in_stride;
  uint16_t* const q_out = a.q_out + row * a.heads * dim;
  std::byte* const page = place.page + static_cast<int64_t>(place.token) * dim * 2;
  const int count = (a.heads + 2 * a.kv_heads) * dim;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kRopeThreads) {
    const int head = i / dim, c = i % dim;
    if (head < a.heads) {
      const float x = Rotated(a.q + in + head * dim, c, half, cosine, sine);
      *Global(q_out + i) = static_cast<uint16_t>(ToHalf(x));
      continue;
    }
    const int of_k = head - a.heads, of_v = of_k - a.kv_heads;
    if (of_v < 0) {
      auto* const to = reinterpret_cast<uint16_t*>(page + a.k_offset + of_k * a.head_stride);
      const float x = Rotated(a.k + in + of_k * dim, c, half, cosine, sine);
      *Global(to + c) = static_cast<uint16_t>(ToHalf(x));
    } else {
      auto* const to = reinterpret_cast<uint16_t*>(page + a.v_offset + of_v * a.head_stride);
      *Global(to + c) = static_cast<uint16_t>(ToHalf(*Global(a.v + in + of_v * dim + c)));
    }
  }
}

// Blocks are (run, keys of it). A thread reads both channels of a pair before it writes them.
CAIRN_DEVICE void TurnKeyRun(const batch::TurnKeysArgs& a) {
  const batch::KeyRun run = *Global(a.runs + blockIdx.x);
  const int half = a.rope_dim / 2;
  const float* const cosine = Global(a.cosine + static_cast<int64_t>(run.turn) * half);
  const float* const sine = Global(a.sine + static_cast<int64_t>(run.turn) * half);
  const int first = static_cast<int>(blockIdx.y) * kTurnKeys;
  const int keys = run.count - first < kTurnKeys ? run.count - first : kTurnKeys;
  for (int i = static_cast<int>(threadIdx.x); i < keys * half; i += kTurnThreads) {
    const int pair = i % half;
    uint16_t* const key = Global(run.keys + (first + i / half) * run.stride);
    const float x = FromHalf(key[pair]), y = FromHalf(key[pair + half]);
    const float c = cosine[pair], s = sine[pair];
    key[pair] = static_cast<uint16_t>(ToHalf(x * c - y * s));
    key[pair + half] = static_cast<uint16_t>(ToHalf(y * c + x * s));
  }
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(256)
    cairn_rotate_and_store(CAIRN_PARAMETER(cairn::kernels::batch::RotateAndStoreArgs) args) {
  cairn::kernels::cuda::RotateAndStoreRow(args);
}
CAIRN_KERNEL void __launch_bounds__(128)
    cairn_turn_keys(CAIRN_PARAMETER(cairn::kernels::batch::TurnKeysArgs) args) {
  cairn::kernels::cuda::TurnKeyRun(args);
}
