#pragma once
// The segment of tests/data/selections and the masks that belong to it.

#include <fstream>
#include <iterator>

#include "tests/conformance/selections/case.h"

namespace cairn::selections::testing {

struct Fixture {
  std::string source;
  std::string name;
  std::vector<int64_t> values;
  uint32_t layers;  // Bit l: layer l is compared.
  size_t offset;    // The offset of the masks in kept.bin.
};

inline constexpr int32_t kLayers = 3, kHeads = 3, kQueryHeads = 9, kDim = 64, kHidden = 192;
inline constexpr int64_t kTokens = 512, kWindow = 64;
inline constexpr int32_t kFullLayer = 1;  // The layer that has queries for all rows.

// Empty when there is no such file.
inline std::vector<char> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<char> bytes(file ? static_cast<size_t>(file.tellg()) : 0);
  file.seekg(0);
  file.read(bytes.data(), std::ssize(bytes));
  return bytes;
}

inline std::vector<uint16_t> ReadHalves(const std::string& path) {
  const std::vector<char> bytes = ReadFile(path);
  std::vector<uint16_t> halves(bytes.size() / 2);
  std::memcpy(halves.data(), bytes.data(), 2 * halves.size());
  return halves;
}

// The captured segment; empty when the files are not there. In pages of 64 tokens.
inline TestSegment Captured() {
  TestSegment s{.shape = {kLayers, kQueryHeads, kHeads, kDim, kHidden, kDim, 100000},
                .tokens = kTokens};
  const std::string folder = "tests/data/selections/";
  const std::vector<uint16_t> kv = ReadHalves(folder + "kv.f16");
  const std::vector<uint16_t> q = ReadHalves(folder + "queries.f16");
  const std::vector<uint16_t> w = ReadHalves(folder + "projection.f16");
  constexpr size_t kRow = kQueryHeads * kDim;
  if (kv.size() != kLayers * 2 * kHeads * kTokens * kDim ||
      q.size() != (kTokens + (kLayers - 1) * kWindow) * kRow ||
      w.size() != kLayers * kRow * kHidden) {
    return s;
  }
  const uint16_t* from = kv.data();
  const uint16_t* from_q = q.data();
  const uint16_t* from_w = w.data();
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    s.layers.push_back(std::make_unique<Pages>(kTokens, kHeads, kDim, 64));
    for (const bool keys : {true, false}) {
      for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t t = 0; t < kTokens; ++t, from += kDim) {
          std::copy(from, from + kDim, keys ? s.layers.back()->K(h, t) : s.layers.back()->V(h, t));
        }
      }
    }
    s.queries.emplace_back(kTokens * kRow);
    const auto rows = static_cast<size_t>(layer == kFullLayer ? kTokens : kWindow);
    for (size_t i = (kTokens - rows) * kRow; i < kTokens * kRow; ++i) {
      s.queries.back()[i] = FromHalf(*from_q++);
    }
    for (size_t i = 0; i < kRow * kHidden; ++i) {
      if (i == 0) s.projection.emplace_back();
      s.projection.back().push_back(FromHalf(*from_w++));
    }
  }
  return s;
}

// Entries of the compared layers in which `kept` differs from the reference; all if there is none.
inline int64_t Differences(const Fixture& fixture, const KeptRows& kept) {
  static const std::vector<char> masks = ReadFile("tests/data/selections/kept.bin");
  int64_t differ = 0;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    if ((fixture.layers >> layer & 1) == 0) continue;
    for (int32_t head = 0; head < kHeads; ++head) {
      const size_t at = fixture.offset + static_cast<size_t>(layer * kHeads + head) * kTokens / 8;
      if (at + kTokens / 8 > masks.size()) return kTokens * kHeads * kLayers;
      for (int64_t row = 0; row < kTokens; ++row) {
        const bool want = (masks[at + static_cast<size_t>(row) / 8] >> row % 8 & 1) != 0;
        differ += want != kept.kept(layer, head, row) ? 1 : 0;
      }
    }
  }
  return differ;
}
// How many may: scores within rounding of each other change places.
inline int64_t MayDiffer(const Fixture& fixture) {
  return std::popcount(fixture.layers) * kHeads * kTokens / 1000;
}

}  // namespace cairn::selections::testing
