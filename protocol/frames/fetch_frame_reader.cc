#include "protocol/frames/fetch_frame_reader.h"

#include <utility>

#include "protocol/frames/wire_format.h"
#include "protocol/wire/convert.h"

namespace cairn::frames {
namespace {

bool ReadSlice(FieldReader* in, FetchFrameView* out) {
  using v1::Slice;
  FetchFrameView::Piece piece;
  v1::PartRect part;
  uint32_t codec = 0;
  uint32_t tier = 0;
  const bool ok = in->ReadMessage([&](uint32_t tag) {
    switch (tag) {
      case NumberTag(Slice::kBlockFieldNumber):
        return in->Read(&piece.slice.block);
      case BytesTag(Slice::kPartFieldNumber):
        return in->Read(&part);
      case NumberTag(Slice::kLayerFieldNumber):
        return in->Read(&piece.slice.layer);
      case NumberTag(Slice::kCodecFieldNumber):
        return in->Read(&codec);
      case NumberTag(Slice::kSliceBytesFieldNumber):
        return in->Read(&piece.slice.slice_bytes);
      case NumberTag(Slice::kXxh3FieldNumber):
        return in->Read(&piece.slice.xxh3);
      case NumberTag(Slice::kOffsetFieldNumber):
        return in->Read(&piece.offset);
      case BytesTag(Slice::kDataFieldNumber):
        return in->Borrow(&piece.data);
      case NumberTag(Slice::kTierFieldNumber):
        return in->Read(&tier);
      default:
        return in->Skip(tag);
    }
  });
  if (!ok) return false;
  const Result<format::PartRect> rect = wire::FromProto(part, "part");
  if (!rect.ok()) return false;
  piece.slice.part = *rect;
  piece.slice.tier = static_cast<v1::TierKind>(tier);
  const Result<format::Codec> known = wire::FromProto(static_cast<v1::Codec>(codec), "codec");
  if (!known.ok()) {
    // A newer node's way of storing numbers: these bytes mean nothing here.
    out->failed.push_back({piece.slice.block, v1::MISS_REASON_REFUSED});
    return true;
  }
  piece.slice.codec = *known;
  out->pieces.push_back(std::move(piece));
  return true;
}

bool ReadRows(FieldReader* in, FetchFrameView* out) {
  using v1::Rows;
  FetchFrameView::Rows group;
  RowsHeader& rows = group.rows;
  uint32_t codec = 0;
  uint32_t tier = 0;
  const bool ok = in->ReadMessage([&](uint32_t tag) {
    switch (tag) {
      case NumberTag(Rows::kBlockFieldNumber):
        return in->Read(&rows.block);
      case NumberTag(Rows::kHeadFieldNumber):
        return in->Read(&rows.head);
      case NumberTag(Rows::kCodecFieldNumber):
        return in->Read(&codec);
      case Fixed64Tag(Rows::kSliceXxh3FieldNumber):
        return in->ReadFixed(&rows.slice_xxh3);
      case Fixed64Tag(Rows::kXxh3FieldNumber):
        return in->ReadFixed(&rows.xxh3);
      case NumberTag(Rows::kTierFieldNumber):
        return in->Read(&tier);
      case BytesTag(Rows::kDataFieldNumber):
        return in->Borrow(&group.data);
      default:
        return in->Skip(tag);
    }
  });
  if (!ok) return false;
  rows.tier = static_cast<v1::TierKind>(tier);
  const Result<format::Codec> known = wire::FromProto(static_cast<v1::Codec>(codec), "codec");
  if (!known.ok()) {
    out->failed.push_back({rows.block, v1::MISS_REASON_REFUSED});
    return true;
  }
  rows.codec = *known;
  out->rows.push_back(std::move(group));
  return true;
}

bool ReadFailed(FieldReader* in, FetchFrameView* out) {
  v1::BlockFailed failed;
  if (!in->Read(&failed)) return false;
  out->failed.push_back({failed.block(), failed.reason()});
  return true;
}

}  // namespace

Result<FetchFrameView> ReadFetchFrame(grpc::ByteBuffer* frame) {
  FieldReader in(frame);
  FetchFrameView out;
  const auto too_many = [&] {
    return out.pieces.size() + out.rows.size() + out.failed.size() > kMaxPieces;
  };
  const bool ok = in.Fields([&](uint32_t tag) {
    switch (tag) {
      case BytesTag(v1::FetchFrame::kSlicesFieldNumber):
        return ReadSlice(&in, &out) && !too_many();
      case BytesTag(v1::FetchFrame::kRowsFieldNumber):
        return ReadRows(&in, &out) && !too_many();
      case BytesTag(v1::FetchFrame::kFailedFieldNumber):
        return ReadFailed(&in, &out) && !too_many();
      case BytesTag(v1::FetchFrame::kMatchedFieldNumber):
        if (!out.matched) out.matched.emplace();
        return in.Read(&*out.matched);
      default:
        return in.Skip(tag);
    }
  });
  if (too_many()) {
    return Errorf(StatusCode::kDataLoss,
                  "fetch frame: got more than {} slices, groups of rows and failures, expected at "
                  "most that many",
                  kMaxPieces);
  }
  if (!ok) {
    return Errorf(StatusCode::kDataLoss,
                  "fetch frame: expected a message of type cairn.v1.FetchFrame");
  }
  return out;
}

}  // namespace cairn::frames
