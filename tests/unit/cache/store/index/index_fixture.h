#pragma once
// Keys and parts for tests of the index.

#include <random>

#include "services/cache/store/index/block_index.h"

namespace cairn::cache::testing {

inline BlockKey KeyOf(uint64_t n) {
  BlockKey key;
  std::mt19937_64 rng(n * 0x9e3779b97f4a7c15ull + 1);
  for (size_t i = 0; i < 4; ++i) {
    const uint64_t word = rng();
    std::memcpy(key.bytes.data() + 8 * i, &word, 8);
  }
  return key;
}

inline constexpr format::PartRect kWhole{0, 4, 0, 2};

inline PartPlaces OnePart(uint64_t extent, uint32_t bytes = 100) {
  return {PartPlace{kWhole, {{bytes, bytes, bytes}}, {{extent, extent, extent}}}};
}

}  // namespace cairn::cache::testing
