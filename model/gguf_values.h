#pragma once
// Code that the GGUF parser and the typed getters share: reading values in place.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "model/gguf.h"

namespace cairn::model::gguf_internal {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

// p needs no alignment.
template <typename T>
T Load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

// Bytes of a scalar value; 0 for strings, arrays and unknown types.
inline uint64_t ScalarBytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kInt8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kUint16:
    case GgufValueType::kInt16:
      return 2;
    case GgufValueType::kUint32:
    case GgufValueType::kInt32:
    case GgufValueType::kFloat32:
      return 4;
    case GgufValueType::kUint64:
    case GgufValueType::kInt64:
    case GgufValueType::kFloat64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return 0;
  }
  return 0;
}

}  // namespace cairn::model::gguf_internal
