#pragma once
// Reads v1.FetchFrame messages without copies of their data.

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "cairn/common/status.h"
#include "protocol/frames/fetch_frame.h"
#include "protocol/frames/field_reader.h"

namespace cairn::frames {

// A frame that was read. `data` points into the received bytes.
struct FetchFrameView {
  struct Piece {
    SliceHeader slice = {};
    uint64_t offset = 0;  // Of the data in the slice.
    Chunks data = {};
  };
  std::vector<Piece> pieces = {};
  std::vector<FailedBlock> failed = {};
  std::optional<v1::MatchResponse> matched = {};
};

// DATA_LOSS for bytes that are no FetchFrame, or have a rectangle that no part has, and for more
// than kMaxPieces slices and failures. Skips fields that it does not know. A block with a slice in
// a codec that this version does not know is among the failed ones, with MISS_REASON_REFUSED.
// `frame` stays as it is, and must outlive the result.
Result<FetchFrameView> ReadFetchFrame(grpc::ByteBuffer* frame);

}  // namespace cairn::frames
