#pragma once
// Reads v1.PushFrame messages without copies of their data.

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "protocol/frames/field_reader.h"

namespace cairn::frames {

// A frame that was read. `data` points into the received bytes.
struct PushFrameView {
  struct Piece {
    uint64_t reservation_id = 0;
    uint64_t offset = 0;  // Where the data begins in the reservation.
    uint64_t bytes = 0;   // Size of the data.
    Chunks data = {};
  };
  std::string session_id = {};
  std::vector<Piece> pieces = {};
  std::vector<uint64_t> commit_ids = {};
};

// INVALID_ARGUMENT: the bytes are not a PushFrame, or there are more than kMaxPartsPerCall
// commit_ids or kMaxPieces pieces. Skips fields that it does not know. `frame` is not changed and
// must outlive the result.
Result<PushFrameView> ReadPushFrame(grpc::ByteBuffer* frame);

}  // namespace cairn::frames
