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
    uint64_t offset = 0;  // Where the data begins in the slice.
    Chunks data = {};
  };
  struct Rows {
    RowsHeader rows = {};
    Chunks data = {};
  };
  std::vector<Piece> pieces = {};
  std::vector<Rows> rows = {};
  std::vector<FailedBlock> failed = {};
  std::optional<v1::MatchResponse> matched = {};
};

// DATA_LOSS: the bytes are not a FetchFrame, a rectangle is one that no part can have, or there are
// more than kMaxPieces slices, groups of rows and failures. Skips fields that it does not know. A
// slice, or a group of rows, in a codec that this version does not know is left out, and its block
// is among the failed ones with MISS_REASON_REFUSED. `frame` is not changed and must outlive the
// result.
Result<FetchFrameView> ReadFetchFrame(grpc::ByteBuffer* frame);

}  // namespace cairn::frames
