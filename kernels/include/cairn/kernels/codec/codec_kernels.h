#pragma once
// Kernels of the KV codecs: a table of functions for each backend (backend.h).
//
// Every implementation gives the same bytes, and the same halves back: float32 arithmetic without
// contraction, true division (a reciprocal is 1 / x, never an approximation), rounding to nearest
// even, reductions in the order that reference/codec/ defines. So equal input gives equal bytes on
// every machine, and two workers that compress one prefix produce one content.
//
// A function launches its operation on the stream (stream.h says what that means). The kernels of
// CPUs allocate nothing, start no threads, and may be called from any thread.
//
// Encoders find a fault when a number is NaN or infinite: then what they wrote means nothing, and
// count_non_finite tells how many there are. Decoders take any bytes: they find a fault when there
// is a scale that no encoder writes, and never produce NaN or infinity; numbers beyond the range of
// half become the largest half. The caller must check sizes.
//
// docs/inside/formats/codecs.md draws the bytes.

#include "cairn/kernels/codec/rows.h"
#include "cairn/kernels/isa.h"
#include "cairn/kernels/stream.h"

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
struct Int4ChannelParams {};

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
struct Fp8Params {};

// --- whole multiples of a step, for entropy coding ---
// step = half(rms(x) * step64 / 64) over all rows; number = round(x * (1 / step)) in
// [-32767, 32767], stored plus kLatticeZero as [rows][dim]. Sums have 16 partial sums, column c in
// sum c % 16, rows in order. Decoded number * step. REQUIRES: dim % 16 == 0; encoding: rows >= 1.
inline constexpr int32_t kLatticeZero = 32768;
struct LatticeEncodeArgs {
  HalfRows x;
  int64_t step64 = 16;
  uint16_t* step = nullptr;
  uint16_t* out = nullptr;     // [rows][dim]
  uint32_t* faults = nullptr;  // As in EncodeArgs.
};
struct LatticeDecodeArgs {
  const uint16_t* in = nullptr;
  uint16_t step = 0;
  MutableHalfRows y;
  uint32_t* faults = nullptr;
};

// --- operations ---
// Faults are or-ed into a word in the backend's memory, so that all operations of a slice may share
// one.
inline constexpr uint32_t kNonFiniteFault = 1;  // Encoders: a number is NaN or infinite.
inline constexpr uint32_t kScaleFault = 2;      // Decoders: no encoder writes such a scale.

template <typename Params>
struct EncodeArgs {
  HalfRows x;
  Params params;
  std::byte* out = nullptr;
  uint32_t* faults = nullptr;
};

template <typename Params>
struct DecodeArgs {
  const std::byte* in = nullptr;
  Params params;
  MutableHalfRows y;
  uint32_t* faults = nullptr;
};

// *count += the numbers that are NaN or infinite.
struct CountNonFiniteArgs {
  HalfRows x;
  int64_t* count = nullptr;
};

template <typename Args>
using CodecOp = void (*)(Stream&, const Args&);

struct CodecKernels {
  // "reference", Name(isa), or the name of another backend.
  const char* name = nullptr;

  CodecOp<CountNonFiniteArgs> count_non_finite = nullptr;
  // Call it once after decoding with MutableHalfRows::streaming, before another thread learns of
  // the rows.
  void (*end_streaming)(Stream&) = nullptr;

  CodecOp<EncodeArgs<Int8Params>> int8_encode = nullptr;
  CodecOp<DecodeArgs<Int8Params>> int8_decode = nullptr;

  CodecOp<EncodeArgs<Int4TokenParams>> int4_token_encode = nullptr;
  CodecOp<DecodeArgs<Int4TokenParams>> int4_token_decode = nullptr;
  CodecOp<EncodeArgs<Int4ChannelParams>> int4_channel_encode = nullptr;
  CodecOp<DecodeArgs<Int4ChannelParams>> int4_channel_decode = nullptr;

  CodecOp<EncodeArgs<TurboParams>> turbo_encode = nullptr;
  CodecOp<DecodeArgs<TurboParams>> turbo_decode = nullptr;

  CodecOp<EncodeArgs<Fp8Params>> fp8_encode = nullptr;
  CodecOp<DecodeArgs<Fp8Params>> fp8_decode = nullptr;

  CodecOp<LatticeEncodeArgs> lattice_encode = nullptr;
  CodecOp<LatticeDecodeArgs> lattice_decode = nullptr;
};

// The definition, in plain loops.
const CodecKernels& ReferenceCodecKernels();
// REQUIRES: Supports(isa). Instruction sets beyond kAvx512 have kAvx512's.
const CodecKernels& CpuCodecKernels(Isa isa);

}  // namespace cairn::kernels
