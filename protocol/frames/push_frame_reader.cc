#include "protocol/frames/push_frame_reader.h"

#include "cairn/v1/cache.pb.h"
#include "common/keys/call_limits.h"
#include "protocol/frames/wire_format.h"

namespace cairn::frames {
namespace {

bool ReadPiece(FieldReader* in, PushFrameView::Piece* piece) {
  using Piece = v1::PushFrame::Piece;
  const bool ok = in->ReadMessage([&](uint32_t tag) {
    switch (tag) {
      case NumberTag(Piece::kReservationIdFieldNumber):
        return in->Read(&piece->reservation_id);
      case NumberTag(Piece::kOffsetFieldNumber):
        return in->Read(&piece->offset);
      case BytesTag(Piece::kDataFieldNumber):
        return in->Borrow(&piece->data);
      default:
        return in->Skip(tag);
    }
  });
  for (const auto& chunk : piece->data) piece->bytes += chunk.size();
  return ok;
}

}  // namespace

Result<PushFrameView> ReadPushFrame(grpc::ByteBuffer* frame) {
  FieldReader in(frame);
  PushFrameView out;
  const auto too_many = [&] {
    return out.pieces.size() > kMaxPieces || out.commit_ids.size() > kMaxPartsPerCall;
  };
  const bool ok = in.Fields([&](uint32_t tag) {
    switch (tag) {
      case BytesTag(v1::PushFrame::kSessionIdFieldNumber):
        return in.Read(&out.session_id);
      case BytesTag(v1::PushFrame::kPiecesFieldNumber):
        return ReadPiece(&in, &out.pieces.emplace_back()) && !too_many();
      case BytesTag(v1::PushFrame::kCommitIdsFieldNumber):
        return in.ReadPacked(kMaxPartsPerCall, &out.commit_ids) && !too_many();
      case NumberTag(v1::PushFrame::kCommitIdsFieldNumber):
        return in.Read(&out.commit_ids.emplace_back()) && !too_many();
      default:
        return in.Skip(tag);
    }
  });
  if (out.pieces.size() > kMaxPieces) {
    return InvalidArgument("pieces: got more than {}, expected at most that many in a frame",
                           kMaxPieces);
  }
  if (out.commit_ids.size() > kMaxPartsPerCall) {
    return InvalidArgument("commit_ids: got more than {}, expected at most that many",
                           kMaxPartsPerCall);
  }
  if (!ok) return InvalidArgument("push frame: expected a message of type cairn.v1.PushFrame");
  return out;
}

}  // namespace cairn::frames
