#pragma once
// turbo: rotated rows, levels and a gain (codec_kernels.h). kDim / 16 neighbouring lanes share a
// row, each with 16 neighbouring columns: the first four steps of the Hadamard transform stay in a
// lane's registers, the others are shuffles.

#include "cairn/kernels/codec/turbo_levels.h"
#include "kernels/cuda/batch.cuh"

namespace cairn::kernels::cuda {

constexpr int kTurboThreads = 128;
constexpr int kTurboRows = 64;  // Rows of a block.

template <int kDim>
struct TurboShape {
  static constexpr int kLanes = kDim / 16;
  static constexpr int kRowsAtOnce = kTurboThreads / kLanes;
  // Rows of 4 bits, the bytes before and behind them in their aligned pieces, and the word that
  // LoadShared16 may read behind.
  static constexpr int kRunBytes = (kTurboRows * (2 + kDim / 2) + 48) / 16 * 16;
  static constexpr int kLevels = 16 * 33;
  static constexpr int kParts = kRowsAtOnce * 16;
  static constexpr size_t kDecodeSharedBytes = kRunBytes + kLevels * sizeof(float);
  static constexpr size_t kEncodeSharedBytes =
      sizeof(float) * kParts * (kLanes + 1) + sizeof(float) * kParts;
};

// Bit i: the sign of column 16 * lane + i is flipped.
CAIRN_DEVICE uint32_t TurboSigns(const PlaneBatch& batch, int lane) {
  uint32_t flips = 0;
  if (batch.signs != nullptr) {
    const uint32_t* signs = Global(batch.signs) + lane * 16;
    for (int i = 0; i < 16; ++i) flips |= (signs[i] >> 31) << i;
    return flips;
  }
  // Step lane / 4 + 1 of SplitMix64, as kernels/codecs/turbo makes it: a bit for each column.
  const auto plane =
      static_cast<uint64_t>(static_cast<int64_t>(batch.slices[blockIdx.z].layer)) * 2 +
      (batch.values ? 1 : 0);
  uint64_t bits = 0x436169726e54514bu + plane * 0xd1342543de82ef95u +
                  (static_cast<uint64_t>(lane) / 4 + 1) * 0x9e3779b97f4a7c15u;
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
  bits ^= bits >> 31;
  return static_cast<uint32_t>(bits >> lane % 4 * 16) & 0xffff;
}

// Works on a row whose columns 16 c to 16 c + 15 belong to lane c. All lanes of a warp must call
// it.
template <int kDim>
CAIRN_DEVICE void Hadamard(float (&z)[16], int lane) {
  CAIRN_UNROLL
  for (int d = 1; d < 16; d *= 2) {
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) {
      if ((i & d) != 0) continue;
      const float a = z[i], b = z[i + d];
      z[i] = a + b;
      z[i + d] = a - b;
    }
  }
  CAIRN_UNROLL
  for (int d = 1; d < TurboShape<kDim>::kLanes; d *= 2) {
    const bool upper = (lane & d) != 0;
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) {
      const float other = __shfl_xor_sync(kWholeWarp, z[i], d);
      z[i] = upper ? other - z[i] : z[i] + other;
    }
  }
}

// ---- decoding ----

// The level of a code. Locals, since the arrays of the header are the host's.
CAIRN_DEVICE float TurboLevelOf(int bits, int code) {
  constexpr float k2[2] = {kTurboLevels2[0], kTurboLevels2[1]};
  constexpr float k3[4] = {kTurboLevels3[0], kTurboLevels3[1], kTurboLevels3[2], kTurboLevels3[3]};
  constexpr float k4[8] = {kTurboLevels4[0], kTurboLevels4[1], kTurboLevels4[2], kTurboLevels4[3],
                           kTurboLevels4[4], kTurboLevels4[5], kTurboLevels4[6], kTurboLevels4[7]};
  const int half = 1 << (bits - 1);
  const int above = code < half ? half - 1 - code : code - half;
  float level = 0.0f;
  // By selects: an array that a lane indexes would lie in local memory.
  CAIRN_UNROLL
  for (int i = 0; i < 8; ++i) {
    const float of_bits = bits == 2 ? k2[i % 2] : bits == 3 ? k3[i % 4] : k4[i];
    if (i == above) level = of_bits;
  }
  return code < half ? -level : level;
}

// The codes of a lane's 16 columns, from a row's codes in shared memory.
template <int kDim>
CAIRN_DEVICE void TurboCodes(const uint8_t* array, int at, int bits, int lane,
                             uint32_t (&codes)[16]) {
  if (bits == 4) {
    const uint4 bytes = LoadShared16(array, at + lane / 2 * 16);
    const int shift = lane % 2 * 4;
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) codes[i] = ByteAt(bytes, i) >> shift & 15;
    return;
  }
  const uint4 pairs = LoadShared16(array, at + lane / 4 * 16);
  const int shift = lane % 4 * 2;
  uint32_t high = 0;
  if (bits == 3) {
    const uint8_t* const bytes = array + at + kDim / 4 + lane * 2;
    high = static_cast<uint32_t>(bytes[0]) | static_cast<uint32_t>(bytes[1]) << 8;
  }
  CAIRN_UNROLL
  for (int i = 0; i < 16; ++i) codes[i] = (ByteAt(pairs, i) >> shift & 3) | (high >> i & 1) << 2;
}

template <int kDim>
CAIRN_DEVICE void TurboDecodeHead(const PlaneBatch& batch) {
  using Sizes = TurboShape<kDim>;
  SharedArrays shared;
  uint8_t* const run = shared.Take<uint8_t>(Sizes::kRunBytes);
  float* const levels = shared.Take<float>(Sizes::kLevels);  // A table for each bank.
  Head head;
  if (!OpenHead(batch, &head)) return;
  const int first = static_cast<int>(blockIdx.x) * kTurboRows;
  if (first >= head.rows) return;
  const int rows = head.rows - first < kTurboRows ? head.rows - first : kTurboRows;
  const int bits = head.parameter, row_bytes = head.row_bytes;
  const uint8_t* const bytes = head.Row(first);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % Sizes::kLanes;
  for (int piece = thread; piece < PiecesOf(bytes, rows * row_bytes); piece += kTurboThreads) {
    CopyPieceAsync(run, bytes, rows * row_bytes, piece);
  }
  CommitCopies();
  for (int i = thread; i < 16 * 32; i += kTurboThreads) {
    levels[i / 32 * 33 + i % 32] = i / 32 < 1 << bits ? TurboLevelOf(bits, i / 32) : 0.0f;
  }
  const uint32_t flips = TurboSigns(batch, lane);
  WaitForCopies<0>();
  __syncthreads();
  const float* const level = levels + thread % kWarp;
  uint32_t faults = 0;
  // All lanes of a warp go round alike: shuffles need them.
  for (int base = 0; base < rows; base += Sizes::kRowsAtOnce) {
    const int row = base + thread / Sizes::kLanes;
    const bool mine = row < rows;
    const int at = SkipOf(bytes) + (mine ? row : 0) * row_bytes;
    const uint32_t gain = static_cast<uint32_t>(run[at]) | static_cast<uint32_t>(run[at + 1]) << 8;
    if (!IsScale(gain)) faults |= kScaleFault;
    uint32_t codes[16];
    TurboCodes<kDim>(run, at + 2, bits, lane, codes);
    float z[16];
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) z[i] = level[codes[i] * 33];
    Hadamard<kDim>(z, lane);
    // kDim is a power of two: the quotient is exact either way.
    const float scale = FromHalf(gain) * (1.0f / kDim);
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) {
      const float x = z[i] * scale;
      z[i] = (flips >> i & 1) != 0 ? -x : x;
    }
    if (mine) Store16Floats(head, first + row, lane * 16, z);
  }
  Report(head, faults);
}

// ---- encoding ----

// Sums of a row whose columns 16 c to 16 c + 15 are lane c's, in the order of the definition: 16
// partial sums, column d in sum d % 16, columns in order; then sums i and i + 8, + 4, + 2, + 1.
// So a partial sum runs over the lanes: they write their numbers to shared memory, and each lane
// adds up some of the sums.
template <int kDim>
struct OrderedSum {
  float* numbers = nullptr;  // The numbers of the row: [16][kLanes + 1].
  float* parts = nullptr;    // The parts of the row: [16].

  // All lanes of a warp must call it. Two barriers are enough also when it is called again: behind
  // the second nobody reads `numbers`, and behind the next call's first nobody reads `parts`.
  CAIRN_DEVICE float Of(const float (&v)[16], int lane) const {
    constexpr int kLanes = TurboShape<kDim>::kLanes;
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) numbers[i * (kLanes + 1) + lane] = v[i];
    __syncwarp();
    for (int part = lane; part < 16; part += kLanes) {
      float sum = 0.0f;
      CAIRN_UNROLL
      for (int k = 0; k < kLanes; ++k) sum += numbers[part * (kLanes + 1) + k];
      parts[part] = sum;
    }
    __syncwarp();
    float s[16];
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) s[i] = parts[i];
    CAIRN_UNROLL
    for (int n = 8; n > 0; n /= 2) {
      CAIRN_UNROLL
      for (int i = 0; i < n; ++i) s[i] += s[i + n];
    }
    return s[0];
  }
};

struct Level {
  float value;
  uint32_t code;
};

// The level nearest to t.
template <int kBits>
CAIRN_DEVICE Level NearestLevel(float t) {
  constexpr int kHalf = 1 << (kBits - 1);
  // Locals, since the arrays of the header are the host's; unused ones go away.
  constexpr float kLevels[8] = {TurboLevels(kBits)[0],         TurboLevels(kBits)[1],
                                TurboLevels(kBits)[2 % kHalf], TurboLevels(kBits)[3 % kHalf],
                                TurboLevels(kBits)[4 % kHalf], TurboLevels(kBits)[5 % kHalf],
                                TurboLevels(kBits)[6 % kHalf], TurboLevels(kBits)[7 % kHalf]};
  float magnitude = kLevels[0];
  uint32_t above = 0;
  CAIRN_UNROLL
  for (int i = 0; i + 1 < kHalf; ++i) {
    const bool beyond = fabsf(t) > 0.5f * (kLevels[i] + kLevels[i + 1]);
    magnitude = beyond ? kLevels[i + 1] : magnitude;
    above = beyond ? i + 1 : above;
  }
  const bool negative = t < 0.0f;
  return {negative ? -magnitude : magnitude, negative ? kHalf - 1 - above : kHalf + above};
}
CAIRN_DEVICE Level NearestLevel(int bits, float t) {
  if (bits == 2) return NearestLevel<2>(t);
  return bits == 3 ? NearestLevel<3>(t) : NearestLevel<4>(t);
}

CAIRN_DEVICE uint4 OrWithLane(uint4 v, int distance) {
  v.x |= __shfl_xor_sync(kWholeWarp, v.x, distance);
  v.y |= __shfl_xor_sync(kWholeWarp, v.y, distance);
  v.z |= __shfl_xor_sync(kWholeWarp, v.z, distance);
  v.w |= __shfl_xor_sync(kWholeWarp, v.w, distance);
  return v;
}

// Writes the codes of a row: lanes bring together the bytes that hold columns of several of them.
// All lanes of a warp must call it; only those of a row that is `mine` write.
template <int kDim>
CAIRN_DEVICE void PutTurboCodes(uint8_t* to, int bits, int lane, bool mine,
                                const uint32_t (&codes)[16]) {
  uint32_t low[16];
  const int shift = bits == 4 ? lane % 2 * 4 : lane % 4 * 2;
  CAIRN_UNROLL
  for (int i = 0; i < 16; ++i) low[i] = (bits == 4 ? codes[i] : codes[i] & 3) << shift;
  uint4 bytes = OrWithLane(PackBytes(low), 1);
  if (bits == 4) {
    if (mine && lane % 2 == 0) Store16(to + lane / 2 * 16, bytes);
    return;
  }
  bytes = OrWithLane(bytes, 2);
  if (mine && lane % 4 == 0) Store16(to + lane / 4 * 16, bytes);
  if (bits == 2 || !mine) return;
  uint32_t high = 0;
  CAIRN_UNROLL
  for (int i = 0; i < 16; ++i) high |= codes[i] >> 2 << i;
  Store2(to + kDim / 4 + lane * 2, high);
}

template <int kDim>
CAIRN_DEVICE void TurboEncodeHead(const PlaneBatch& batch) {
  using Sizes = TurboShape<kDim>;
  SharedArrays shared;
  float* const numbers = shared.Take<float>(Sizes::kParts * (Sizes::kLanes + 1));
  float* const parts = shared.Take<float>(Sizes::kParts);
  Head head;
  if (!OpenHead(batch, &head)) return;
  const int first = static_cast<int>(blockIdx.x) * kTurboRows;
  if (first >= head.rows) return;
  const int rows = head.rows - first < kTurboRows ? head.rows - first : kTurboRows;
  const int bits = head.parameter;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % Sizes::kLanes;
  const int slot = thread / Sizes::kLanes;
  const uint32_t flips = TurboSigns(batch, lane);
  const OrderedSum<kDim> sum{numbers + slot * 16 * (Sizes::kLanes + 1), parts + slot * 16};
  uint32_t faults = 0;
  for (int base = 0; base < rows; base += Sizes::kRowsAtOnce) {
    const int row = base + slot;
    const bool mine = row < rows;
    float z[16] = {};
    if (mine) Load16Floats(head, first + row, lane * 16, z, &faults);
    float v[16];
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) {
      v[i] = z[i] * z[i];
      z[i] = (flips >> i & 1) != 0 ? -z[i] : z[i];
    }
    const float norm = sqrtf(sum.Of(v, lane));
    Hadamard<kDim>(z, lane);
    const float inverse = norm > 0.0f ? 1.0f / norm : 0.0f;
    float level[16];
    uint32_t codes[16];
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) {
      const Level nearest = NearestLevel(bits, z[i] * inverse);
      level[i] = nearest.value;
      codes[i] = nearest.code;
      v[i] = z[i] * nearest.value;
    }
    const float both = sum.Of(v, lane);
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) v[i] = level[i] * level[i];
    const float own = sum.Of(v, lane);
    uint8_t* const out = head.Row(first + row);
    if (mine && lane == 0) Store2(out, ToHalf(fminf(both / own, 65504.0f)));
    PutTurboCodes<kDim>(out + 2, bits, lane, mine, codes);
  }
  Report(head, faults);
}

}  // namespace cairn::kernels::cuda

// One of each for the dimensions that the codec takes.
#define CAIRN_TURBO_KERNELS(dim)                                                          \
  CAIRN_KERNEL void __launch_bounds__(128)                                                \
      cairn_turbo_encode_##dim(CAIRN_PARAMETER(cairn::kernels::cuda::PlaneBatch) batch) { \
    cairn::kernels::cuda::TurboEncodeHead<dim>(batch);                                    \
  }                                                                                       \
  CAIRN_KERNEL void __launch_bounds__(128)                                                \
      cairn_turbo_decode_##dim(CAIRN_PARAMETER(cairn::kernels::cuda::PlaneBatch) batch) { \
    cairn::kernels::cuda::TurboDecodeHead<dim>(batch);                                    \
  }
CAIRN_TURBO_KERNELS(64)
CAIRN_TURBO_KERNELS(128)
CAIRN_TURBO_KERNELS(256)
CAIRN_TURBO_KERNELS(512)
