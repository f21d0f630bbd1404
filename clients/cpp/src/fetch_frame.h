#pragma once
// Reads FetchFrame messages without copying their data.

#include <google/protobuf/io/zero_copy_stream.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cairn/v1/cache.pb.h"
#include "clients/cpp/src/slice_assembler.h"

namespace cairn::client {

// A parsed v1.FetchFrame. `pieces` point into the stream's buffers.
struct FetchFrameView {
  std::vector<SlicePiece> pieces;
  std::vector<std::pair<uint32_t, MissReason>>
      failed;  // Blocks. Those with slices in a codec unknown here are among them.
  std::optional<v1::MatchResponse> matched;
};

// Protobuf's own parser would copy every byte of data into a string first. Unknown fields are
// skipped. DATA_LOSS for bytes that are no FetchFrame. The buffers of `in` must live as long as the
// result.
Result<FetchFrameView> ParseFetchFrame(google::protobuf::io::ZeroCopyInputStream* in);

}  // namespace cairn::client
