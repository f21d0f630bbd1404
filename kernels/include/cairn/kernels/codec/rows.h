#pragma once
// Rows of half precision numbers (IEEE binary16, as bits): what codec kernels read and write.
//
// Usually the tokens of one KV head of one plane: row = token, column = dimension of the head.
// Strides count numbers. Empty (rows = 0) is allowed and touches nothing.

#include <cstddef>
#include <cstdint>

namespace cairn::kernels {

struct HalfRows {
  const uint16_t* data = nullptr;
  int64_t rows = 0;
  int64_t dim = 0;
  int64_t stride = 0;  // >= dim.

  const uint16_t* row(int64_t r) const { return data + r * stride; }
  HalfRows Part(int64_t first, int64_t count) const { return {row(first), count, dim, stride}; }
};

struct MutableHalfRows {
  uint16_t* data = nullptr;
  int64_t rows = 0;
  int64_t dim = 0;
  int64_t stride = 0;
  // True: rows that are aligned to 64 bytes are stored without going through the caches. For large
  // amounts that another core will read: twice as fast from memory to memory, but slower if this
  // core reads the rows next.
  bool streaming = false;

  uint16_t* row(int64_t r) const { return data + r * stride; }
  MutableHalfRows Part(int64_t first, int64_t count) const {
    return {row(first), count, dim, stride, streaming};
  }
};

}  // namespace cairn::kernels
