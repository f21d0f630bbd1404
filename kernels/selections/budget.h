#pragma once
// How many rows a segment keeps.

#include <cstdint>

namespace cairn::selections {

inline constexpr int64_t kKeepUnits = 1000;  // keep=1 in units of its last digit.

// floor(tokens * keep), at least 1, in integers: the same everywhere.
constexpr int64_t RowsToKeep(int64_t tokens, int64_t keep_units) {
  const int64_t rows = tokens * keep_units / kKeepUnits;
  return rows < 1 ? 1 : rows;
}

}  // namespace cairn::selections
