#pragma once
// Operations on many slices at a time, for hardware on which a launch costs more than a slice: a
// launch takes some microseconds, a slice some hundredths of one.
//
// A slice is one layer of one block, as a codec of kernels/codecs stores it; the bytes and halves
// are the same. A head of selected rows (docs/inside/formats/part.md) is a slice of one head, whose
// tokens are the rows that SelectionUnitKernels::gather_rows has put behind each other. All slices
// of one call have one form, that is, they are of one namespace. Lists (`slices`, `runs`, `pieces`,
// `index`) lie in the host's memory, and a launch copies them. The memory that they point to is the
// backend's.
//
// Each slice has a word of faults, which the caller sets to 0 before the first operation on it and
// reads after Synchronize. Operations or their bits into it: so one word tells what happened to a
// slice on its way. A slice with kHashFault or kLengthFault is not decoded.

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "cairn/kernels/codec/codec_kernels.h"
#include "cairn/kernels/stream.h"

namespace cairn::kernels {

// Besides kNonFiniteFault and kScaleFault of codec_kernels.h.
inline constexpr uint32_t kHashFault = 4;      // The bytes do not have the hash that was promised.
inline constexpr uint32_t kLengthFault = 8;    // The form gives another number of bytes.
inline constexpr uint32_t kInexactFault = 16;  // A bfloat16 number is no half precision number.
inline constexpr uint32_t kStreamFault = 32;   // cachegen: no encoder writes such bytes.

enum class HeadCoding : int32_t {
  kRaw,
  kInt8,
  kInt4Token,
  kInt4Channel,
  kTurbo,
  kFp8,
  kMixed,     // int4 by token, and `outliers` channels in half precision.
  kCacheGen,  // For keys and values both, or for neither.
};

// How the heads of one plane are stored, and where their numbers lie. Strides count numbers.
struct PlaneForm {
  HeadCoding coding = HeadCoding::kRaw;
  // int8, int4 by token and mixed: columns that share a scale. int4 by channel: tokens that share
  // one. turbo: bits a number. cachegen: 64ths of a step. Others: unused.
  int32_t parameter = 0;
  int32_t heads = 0;
  int32_t dim = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
  int32_t outliers = 0;  // mixed alone.
};

struct SliceForm {
  PlaneForm k, v;
  // Tokens at a sequence's start that are stored in half precision.
  int32_t sink = 0;
  // The numbers are bfloat16 where they lie, not half. Encoding refuses numbers that are no halves
  // (kInexactFault), decoding rounds to nearest even.
  bool bfloat16 = false;
  // turbo: [dim], each 0 or 0x80000000, in the backend's memory. Null: those of the format, which
  // follow from the layer.
  const uint32_t* signs = nullptr;
};

struct SliceTask {
  std::byte* encoded = nullptr;  // At any address.
  // SliceBytes of the form. cachegen: what an encoder said when decoding, at least SliceBytes when
  // encoding.
  uint64_t bytes = 0;
  uint16_t* k = nullptr;
  uint16_t* v = nullptr;
  uint32_t* faults = nullptr;
  int64_t first_position = 0;  // The position of the block's first token in the sequence.
  int32_t tokens = 0;
  int32_t layer = 0;
  // cachegen alone. No two slices of a call share them.
  std::byte* scratch = nullptr;       // SliceScratchBytes of the form, aligned to 16 bytes.
  uint64_t* encoded_bytes = nullptr;  // Encoding puts here how many bytes the slice has.
};

// --- sizes ---

constexpr int64_t SinkRows(const SliceForm& form, const SliceTask& slice) {
  if (slice.first_position != 0) return 0;
  return form.sink < slice.tokens ? form.sink : slice.tokens;
}

// A row that is not the sink's. int4 by channel: without the scales, which its group has. mixed:
// without the outliers. cachegen: at most.
constexpr int64_t RowBytes(const PlaneForm& plane) {
  switch (plane.coding) {
    case HeadCoding::kRaw:
      return int64_t{2} * plane.dim;
    case HeadCoding::kInt8:
      return Int8RowBytes(plane.dim, plane.parameter);
    case HeadCoding::kInt4Token:
      return Int4TokenRowBytes(plane.dim, plane.parameter);
    case HeadCoding::kInt4Channel:
      return plane.dim / 2;
    case HeadCoding::kTurbo:
      return TurboRowBytes(plane.dim, plane.parameter);
    case HeadCoding::kFp8:
      return Fp8RowBytes(plane.dim);
    case HeadCoding::kMixed:
      return Int4TokenRowBytes(plane.dim, plane.parameter);
    case HeadCoding::kCacheGen:
      return int64_t{2} * plane.dim;
  }
  return 0;
}

// One head without its sink rows: those of tokens first to tokens - 1.
constexpr int64_t CodedHeadBytes(const PlaneForm& plane, int64_t first, int64_t tokens) {
  const int64_t rows = tokens - first, size = plane.parameter;
  if (plane.coding == HeadCoding::kMixed && rows > 0) {
    return rows * RowBytes(plane) + (rows + 1) * 2 * plane.outliers;
  }
  if (plane.coding != HeadCoding::kInt4Channel || rows == 0) return rows * RowBytes(plane);
  const int64_t groups = (tokens + size - 1) / size - first / size;
  return groups * 4 * plane.dim + rows * RowBytes(plane);
}

constexpr int64_t HeadBytes(const PlaneForm& plane, int64_t sink, int64_t tokens) {
  return 2 * sink * plane.dim + CodedHeadBytes(plane, sink, tokens);
}

constexpr bool IsCacheGen(const SliceForm& form) { return form.k.coding == HeadCoding::kCacheGen; }

// cachegen: at most.
constexpr int64_t SliceBytes(const SliceForm& form, const SliceTask& slice) {
  if (IsCacheGen(form)) {
    return 1 + int64_t{2} * slice.tokens *
                   (int64_t{form.k.heads} * form.k.dim + int64_t{form.v.heads} * form.v.dim);
  }
  const int64_t sink = SinkRows(form, slice);
  return form.k.heads * HeadBytes(form.k, sink, slice.tokens) +
         form.v.heads * HeadBytes(form.v, sink, slice.tokens);
}

// Scratch bytes for both directions; 0 for all codecs but cachegen. Room for numbers and anchors as
// whole numbers, for what heads begin with, and for streams at their longest.
constexpr int64_t SliceScratchBytes(const SliceForm& form, const SliceTask& slice) {
  if (!IsCacheGen(form)) return 0;
  int64_t bytes = 64;
  for (const PlaneForm* plane : {&form.k, &form.v}) {
    const int64_t sink = form.sink < slice.tokens ? form.sink : slice.tokens;
    bytes += int64_t{plane->heads} * ((slice.tokens + 1) * plane->dim * (2 + 8) +
                                      2 * sink * plane->dim + 3 + plane->dim / 2) +
             64;
  }
  return bytes;
}

// --- operations ---

// REQUIRES: shapes that the codec supports (Codec::Supports).
struct SlicesArgs {
  SliceForm form;
  const SliceTask* slices = nullptr;
  int64_t count = 0;
};

// XXH3-64 with seed 0 of bytes at any address.
struct HashRun {
  const std::byte* in = nullptr;
  uint64_t bytes = 0;
  uint64_t* hash = nullptr;    // Where the hash goes. Null: nowhere.
  uint32_t* faults = nullptr;  // Gets kHashFault if the hash is not `expected`. Null: not compared.
  uint64_t expected = 0;
};
struct HashRunsArgs {
  const HashRun* runs = nullptr;
  int64_t count = 0;
};

// Where an engine keeps its blocks: piece p (a layer's keys, values or both) of block b lies at
// pieces[p] + index[b] * stride. In a Cairn block the pieces follow each other.
struct PageMap {
  std::byte* const* pieces = nullptr;  // Aligned to 16 bytes.
  int64_t piece_count = 0;
  const uint32_t* index = nullptr;
  int64_t blocks = 0;
  uint64_t stride = 0;       // Bytes. REQUIRES: a multiple of 16.
  uint32_t piece_bytes = 0;  // REQUIRES: a multiple of 16.
};
// Gather: pages to blocks. Scatter: blocks to pages.
struct MovePagesArgs {
  PageMap pages;
  std::byte* blocks = nullptr;  // Block b at blocks + b * block_stride. Aligned to 16 bytes.
  uint64_t block_stride = 0;    // REQUIRES: a multiple of 16.
  // Pages hold bfloat16, blocks half. Gathering marks numbers that are no halves (kInexactFault in
  // `faults`), scattering rounds to nearest even. Otherwise bytes are moved as they are.
  bool bfloat16_pages = false;
  uint32_t* faults = nullptr;
};

template <typename Args>
using SliceOp = void (*)(Stream&, const Args&);

struct SliceKernels {
  const char* name = nullptr;

  SliceOp<SlicesArgs> encode_slices = nullptr;
  SliceOp<SlicesArgs> decode_slices = nullptr;
  SliceOp<HashRunsArgs> hash_runs = nullptr;
  SliceOp<MovePagesArgs> gather_pages = nullptr;
  SliceOp<MovePagesArgs> scatter_pages = nullptr;
};

}  // namespace cairn::kernels
