// Frames of a client that may lie: nothing is read out of bounds, and what is understood is what
// protobuf's own reader understands.

#include <cstdlib>
#include <string>

#include "cairn/v1/cache.pb.h"
#include "protocol/frames/push_frame_reader.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/received_frame.h"

// The first byte: how the bytes are cut into received slices.
CAIRN_FUZZ_ENTRY(push_frame)(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  grpc::ByteBuffer received = cairn::fuzz::Received(bytes, 1u + data[0]);
  const auto view = cairn::frames::ReadPushFrame(&received);
  if (!view.ok()) return 0;
  cairn::v1::PushFrame expected;
  // Protobuf's reader is stricter in places that do not matter, such as groups in fields that
  // nobody knows.
  if (!expected.ParseFromString(bytes)) return 0;
  if (view->session_id != expected.session_id()) std::abort();
  if (static_cast<size_t>(expected.pieces_size()) != view->pieces.size()) std::abort();
  if (static_cast<size_t>(expected.commit_ids_size()) != view->commit_ids.size()) std::abort();
  for (int i = 0; i < expected.commit_ids_size(); ++i) {
    if (expected.commit_ids(i) != view->commit_ids[static_cast<size_t>(i)]) std::abort();
  }
  for (int i = 0; i < expected.pieces_size(); ++i) {
    const auto& piece = view->pieces[static_cast<size_t>(i)];
    const auto& from = expected.pieces(i);
    if (piece.reservation_id != from.reservation_id() || piece.offset != from.offset())
      std::abort();
    const std::string joined = cairn::fuzz::Join(piece.data);
    if (joined != from.data() || piece.bytes != joined.size()) std::abort();
  }
  return 0;
}
