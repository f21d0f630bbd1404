#pragma once
// What a fetch frame says of a slice, at both ends.

#include <cstdint>

#include "cairn/common/part.h"
#include "cairn/v1/cache.pb.h"

namespace cairn::frames {

// The fields of a v1.Slice that all its pieces have in common. Tiers are numbers of the wire: node
// and client have types of their own.
struct SliceHeader {
  uint32_t block = 0;
  format::PartRect part = {};
  uint32_t layer = 0;
  format::Codec codec = format::Codec::kRaw;
  uint64_t slice_bytes = 0;
  uint64_t xxh3 = 0;  // Of the whole slice.
  v1::TierKind tier = v1::TIER_KIND_UNSPECIFIED;
};

// A v1.BlockFailed: no slice of the block follows.
struct FailedBlock {
  uint32_t block = 0;
  v1::MissReason reason = v1::MISS_REASON_NONE;
};

}  // namespace cairn::frames
