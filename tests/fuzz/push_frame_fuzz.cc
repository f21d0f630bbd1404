// Frames of a client that may lie: nothing is read out of bounds, and what is understood is what protobuf's own reader understands.

#include <cstdlib>
#include <string>

#include "cairn/v1/cache.pb.h"
#include "services/cache/rpc/push_frame.h"

// The first byte: how the bytes are cut into received slices.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t cut = 1 + data[0];
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += cut) slices.emplace_back(bytes.substr(at, cut));
  if (slices.empty()) slices.emplace_back(std::string());
  const auto frame =
      cairn::cache::PushFrameView::Parse(grpc::ByteBuffer(slices.data(), slices.size()));
  if (!frame.ok()) return 0;
  cairn::v1::PushFrame expected;
  // Protobuf's reader is stricter in places that do not matter, such as groups in fields that nobody knows.
  if (!expected.ParseFromString(bytes)) return 0;
  const auto& view = **frame;
  if (view.session_id() != expected.session_id()) std::abort();
  if (static_cast<size_t>(expected.pieces_size()) != view.pieces().size()) std::abort();
  if (static_cast<size_t>(expected.commit_ids_size()) != view.commit_ids().size()) std::abort();
  for (int i = 0; i < expected.commit_ids_size(); ++i) {
    if (expected.commit_ids(i) != view.commit_ids()[static_cast<size_t>(i)]) std::abort();
  }
  for (int i = 0; i < expected.pieces_size(); ++i) {
    const auto& piece = view.pieces()[static_cast<size_t>(i)];
    const auto& from = expected.pieces(i);
    if (piece.reservation_id != from.reservation_id() || piece.offset != from.offset())
      std::abort();
    std::string joined;
    for (const auto& part : piece.data)
      joined.append(reinterpret_cast<const char*>(part.data()), part.size());
    if (joined != from.data() || piece.bytes != joined.size()) std::abort();
  }
  return 0;
}
