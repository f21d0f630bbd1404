#pragma once
// The counts of a fetch: delivered slices and their bytes.

#include <cstdint>

#include "cairn/client/types.h"

namespace cairn::client {

struct FetchCounts {
  uint64_t slices = 0;              // Verified and delivered.
  uint64_t corrupt = 0;             // Did not match their hash.
  uint64_t bytes[kTierCount] = {};  // The bytes of `slices`.
  uint64_t lent_bytes = 0;          // The part of `bytes` that was delivered without a copy.
  uint64_t rows = 0;                // Delivered, of fetches of rows.
  uint64_t corrupt_rows = 0;        // Groups of rows that did not match their hash.
};

}  // namespace cairn::client
