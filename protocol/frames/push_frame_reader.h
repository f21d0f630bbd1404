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
    uint64_t offset = 0;  // Of the data in the reservation.
    uint64_t bytes = 0;   // Of the data.
    Chunks data = {};
  };
  std::string session_id = {};
  std::vector<Piece> pieces = {};
  std::vector<uint64_t> commit_ids = {};
};

// INVALID_ARGUMENT for bytes that are no PushFrame, and for more than kMaxPartsPerCall commit_ids
// or kMaxPieces pieces. Skips fields that it does not know. `frame` stays as it is, and must
// outlive the result.
Result<PushFrameView> ReadPushFrame(grpc::ByteBuffer* frame);

}  // namespace cairn::frames
