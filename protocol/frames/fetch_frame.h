#pragma once
// The description of a slice in a fetch frame. Both ends of a connection use it.

#include <cstdint>

#include "cairn/common/part.h"
#include "cairn/v1/cache.pb.h"

namespace cairn::frames {

// The fields of a v1.Slice that are the same in all its pieces. Tiers are numbers of the wire,
// because node and client have their own types.
struct SliceHeader {
  uint32_t block = 0;
  format::PartRect part = {};
  uint32_t layer = 0;
  format::Codec codec = format::Codec::kRaw;
  uint64_t slice_bytes = 0;
  uint64_t xxh3 = 0;  // Hash of the whole slice.
  v1::TierKind tier = v1::TIER_KIND_UNSPECIFIED;
};

// The fields of a v1.Rows, without its data.
struct RowsHeader {
  uint32_t block = 0;
  uint32_t head = 0;
  format::Codec codec = format::Codec::kRaw;
  uint64_t slice_xxh3 = 0;
  uint64_t xxh3 = 0;  // The hash of the group's description and of its data.
  v1::TierKind tier = v1::TIER_KIND_UNSPECIFIED;
};

// A v1.BlockFailed: no slice or row of the block follows.
struct FailedBlock {
  uint32_t block = 0;
  v1::MissReason reason = v1::MISS_REASON_NONE;
};

}  // namespace cairn::frames
