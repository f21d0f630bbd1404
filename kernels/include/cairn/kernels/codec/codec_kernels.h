#pragma once
// Kernels of the KV codecs: a table of functions per instruction set, as forward_kernels.h has for the
// forward pass.
//
// Every implementation gives the same bytes, and the same halves back: float32 arithmetic without
// contraction, true division (a reciprocal is 1 / x, never an approximation), rounding to nearest
// even, reductions in the order that reference/codec/ defines. So equal input gives equal bytes on
// every machine, and two workers that compress one prefix produce one content.
//
// Functions are pure, allocate nothing, start no threads, and may be called from any thread.
// Encoders return false when a number is NaN or infinite: then what they wrote means nothing, and
// CountNonFinite says how many there are. Decoders take any bytes: they return false for a scale
// that no encoder writes, and never produce NaN or infinity; numbers beyond the range of half
// become the largest half. The caller must check sizes.
//
// docs/formats/codecs.md draws the bytes.

#include "cairn/kernels/codec/rows.h"
#include "cairn/kernels/isa.h"

namespace cairn::kernels {

// The most dimensions of a head, because kernels keep a row on the stack.
inline constexpr int64_t kMaxHeadDim = 512;

// --- int8, one scale per token and group of columns ---
// Row: scales [ceil(dim / group)] half, then codes [dim] int8. scale = half(absmax / 127),
// code = round(x * (1 / scale)) in [-127, 127]; scale 0: codes 0.
// REQUIRES: dim % 16 == 0, group % 16 == 0.
constexpr int64_t Int8RowBytes(int64_t dim, int64_t group) {
  return (dim + group - 1) / group * 2 + dim;
}
struct Int8Params {
  int64_t group = 64;
};

// --- int4, asymmetric ---
// scale = half((max - min) / 15), code = round((x - min) * (1 / scale)) in [0, 15],
// decoded min + code * scale. Codes of 32 neighbours take 16 bytes: byte i holds number i in its
// low half and number 16 + i in its high half.
// REQUIRES: dim % 32 == 0; by token: group % 32 == 0.
//
// By token. Row: {scale half, min half} per group of columns, then codes.
constexpr int64_t Int4TokenRowBytes(int64_t dim, int64_t group) {
  return (dim + group - 1) / group * 4 + dim / 2;
}
struct Int4TokenParams {
  int64_t group = 64;
};
// By channel, over all rows of the call. Scales [dim] half, minima [dim] half, then codes by row.
constexpr int64_t Int4ChannelBytes(int64_t rows, int64_t dim) {
  return rows == 0 ? 0 : 4 * dim + rows * dim / 2;
}

// --- turbo: randomised Hadamard rotation and Lloyd-Max levels (TurboQuant) ---
// z = H (s * x) with the unnormalised Walsh-Hadamard matrix H and the signs s; norm = half(||x||);
// code = the level nearest to z / norm, among the 2^bits levels for a normal distribution.
// The stored gain = half((z . c) / (c . c)), which minimises ||z - gain * c||. Decoded
// s * (H c) * (gain / dim).
// Row: gain half, then codes: 4 bits as int4's; 3 bits: for each 64 columns 16 bytes of low bit
// pairs (number 16 k + i in bits 2 k, 2 k + 1 of byte i) and, behind those of all columns, 8 bytes
// of high bits (number i in bit i % 8 of byte i / 8); 2 bits: bit pairs alone.
// REQUIRES: dim a power of two, 64 <= dim <= kMaxHeadDim; bits 2, 3 or 4.
constexpr int64_t TurboRowBytes(int64_t dim, int64_t bits) { return 2 + dim * bits / 8; }
struct TurboParams {
  int bits = 4;
  // [dim], each 0 or 0x80000000: the sign bits that are flipped.
  const uint32_t* signs = nullptr;
};

// --- fp8 e4m3 (OCP, largest 448), one scale per token ---
// Row: scale half = half(absmax / 448), then codes [dim]. Saturating.
// REQUIRES: dim % 16 == 0.
constexpr int64_t Fp8RowBytes(int64_t dim) { return 2 + dim; }

// --- whole multiples of a step, for entropy coding ---
// step = half(rms(x) * step64 / 64) over all rows; number = round(x * (1 / step)) in
// [-32767, 32767], stored plus kLatticeZero as [rows][dim]. Sums have 16 partial sums, column c in
// sum c % 16, rows in order. Decoded number * step. REQUIRES: dim % 16 == 0; encoding: rows >= 1.
inline constexpr int32_t kLatticeZero = 32768;
struct LatticeParams {
  int64_t step64 = 16;
};

struct CodecKernels {
  // "reference", or Name(isa).
  const char* name = nullptr;

  int64_t (*count_non_finite)(const HalfRows& x) = nullptr;
  // Call it once after decoding with MutableHalfRows::streaming, before another thread learns of
  // the rows.
  void (*end_streaming)() = nullptr;

  bool (*int8_encode)(const HalfRows& x, const Int8Params&, std::byte* out) = nullptr;
  bool (*int8_decode)(const std::byte* in, const Int8Params&, const MutableHalfRows& y) = nullptr;

  bool (*int4_token_encode)(const HalfRows& x, const Int4TokenParams&, std::byte* out) = nullptr;
  bool (*int4_token_decode)(const std::byte* in, const Int4TokenParams&,
                            const MutableHalfRows& y) = nullptr;
  bool (*int4_channel_encode)(const HalfRows& x, std::byte* out) = nullptr;
  bool (*int4_channel_decode)(const std::byte* in, const MutableHalfRows& y) = nullptr;

  bool (*turbo_encode)(const HalfRows& x, const TurboParams&, std::byte* out) = nullptr;
  bool (*turbo_decode)(const std::byte* in, const TurboParams&, const MutableHalfRows& y) = nullptr;

  bool (*fp8_encode)(const HalfRows& x, std::byte* out) = nullptr;
  bool (*fp8_decode)(const std::byte* in, const MutableHalfRows& y) = nullptr;

  bool (*lattice_encode)(const HalfRows& x, const LatticeParams&, uint16_t* step,
                         uint16_t* out) = nullptr;
  bool (*lattice_decode)(const uint16_t* in, uint16_t step, const MutableHalfRows& y) = nullptr;
};

// The definition, in plain loops.
const CodecKernels& ReferenceCodecKernels();
// REQUIRES: Supports(isa). Instruction sets beyond kAvx512 have kAvx512's.
const CodecKernels& CpuCodecKernels(Isa isa);

}  // namespace cairn::kernels
