#pragma once
// The header of a part that lies in shared memory, which others may write.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "cairn/common/part.h"
#include "cairn/common/status.h"
#include "protocol/shm/protocol.h"

namespace cairn::client::local {

// Reads it from a private copy in `copy`: whoever can write the segment could change the header
// between check and use. Not OK: it is not the header of the part that the node named.
inline Result<format::PartHeader> ReadHeaderOf(const shm::PlaceEntry& place,
                                               std::span<const std::byte> part,
                                               std::vector<std::byte>* copy) {
  const auto layers = static_cast<uint32_t>(place.layer_end - place.layer_begin);
  const auto bytes = part.first(std::min<size_t>(format::HeaderBytes(layers), part.size()));
  copy->assign(bytes.begin(), bytes.end());
  CAIRN_ASSIGN_OR_RETURN(format::PartHeader header, format::ParseHeader(*copy));
  const format::PartRect rect{place.layer_begin, place.layer_end, place.head_begin, place.head_end};
  if (header.rect != rect || header.total_bytes != place.bytes) {
    return Errorf(StatusCode::kDataLoss, "the header is that of another part");
  }
  return header;
}

}  // namespace cairn::client::local
