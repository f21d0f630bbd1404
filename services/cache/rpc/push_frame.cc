#include "services/cache/rpc/push_frame.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>

#include "cairn/v1/cache.pb.h"
#include "services/cache/rpc/validate.h"

namespace cairn::cache {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using Piece = PushFrameView::Piece;
using v1::PushFrame;

// A piece costs two bytes on the wire and fifty in memory: without a bound a frame of 4 MiB would take 100.
constexpr size_t kMaxPieces = 16384;

constexpr uint32_t Varint(int field) {
  return WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_VARINT);
}
constexpr uint32_t Delimited(int field) {
  return WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

// Takes `length` bytes as spans of the buffers they lie in.
bool ReadSpans(CodedInputStream* in, uint32_t length, Piece* piece) {
  piece->data.clear();
  piece->bytes = length;
  while (length > 0) {
    const void* data = nullptr;
    int size = 0;
    if (!in->GetDirectBufferPointer(&data, &size) || size <= 0) return false;
    const int take = static_cast<int>(std::min<uint32_t>(length, static_cast<uint32_t>(size)));
    piece->data.emplace_back(static_cast<const std::byte*>(data), static_cast<size_t>(take));
    if (!in->Skip(take)) return false;
    length -= static_cast<uint32_t>(take);
  }
  return true;
}

bool ReadPiece(CodedInputStream* in, Piece* piece) {
  uint32_t length = 0;
  if (!in->ReadVarint32(&length)) return false;
  if (length > static_cast<uint32_t>(in->BytesUntilLimit())) return false;
  const auto limit = in->PushLimit(static_cast<int>(length));
  while (const uint32_t tag = in->ReadTag()) {
    bool ok = true;
    switch (tag) {
      case Varint(PushFrame::Piece::kReservationIdFieldNumber):
        ok = in->ReadVarint64(&piece->reservation_id);
        break;
      case Varint(PushFrame::Piece::kOffsetFieldNumber):
        ok = in->ReadVarint64(&piece->offset);
        break;
      case Delimited(PushFrame::Piece::kDataFieldNumber): {
        uint32_t bytes = 0;
        ok = in->ReadVarint32(&bytes) && bytes <= static_cast<uint32_t>(in->BytesUntilLimit()) &&
             ReadSpans(in, bytes, piece);
        break;
      }
      default:
        ok = WireFormatLite::SkipField(in, tag);
    }
    if (!ok) return false;
  }
  if (!in->ConsumedEntireMessage()) return false;
  in->PopLimit(limit);
  return true;
}

// Packed, or one of them. Reads one more than is allowed at most.
bool ReadIds(CodedInputStream* in, bool packed, std::vector<uint64_t>* ids) {
  if (!packed) return in->ReadVarint64(&ids->emplace_back());
  uint32_t length = 0;
  if (!in->ReadVarint32(&length) || length > static_cast<uint32_t>(in->BytesUntilLimit()))
    return false;
  const auto limit = in->PushLimit(static_cast<int>(length));
  while (in->BytesUntilLimit() > 0 && ids->size() <= kMaxPartsPerCall) {
    if (!in->ReadVarint64(&ids->emplace_back())) return false;
  }
  in->PopLimit(limit);
  return true;
}

}  // namespace

Result<std::unique_ptr<PushFrameView>> PushFrameView::Parse(grpc::ByteBuffer buffer) {
  std::unique_ptr<PushFrameView> frame(new PushFrameView());
  frame->buffer_.Swap(&buffer);
  frame->reader_ = std::make_unique<grpc::ProtoBufferReader>(&frame->buffer_);
  CAIRN_RETURN_IF_ERROR(frame->ParseFields());
  return frame;
}

Status PushFrameView::ParseFields() {
  const auto bad = [] {
    return InvalidArgument("push frame: expected a message of type cairn.v1.PushFrame");
  };
  if (!reader_->status().ok()) return bad();
  CodedInputStream in(reader_.get());
  // With a limit at the end of the bytes, BytesUntilLimit is never negative, and a length beyond them is seen before anything is read.
  in.PushLimit(static_cast<int>(buffer_.Length()));
  while (const uint32_t tag = in.ReadTag()) {
    bool ok = true;
    if (tag == Delimited(PushFrame::kSessionIdFieldNumber)) {
      uint32_t length = 0;
      ok = in.ReadVarint32(&length) && length <= buffer_.Length() &&
           in.ReadString(&session_id_, static_cast<int>(length));
    } else if (tag == Delimited(PushFrame::kPiecesFieldNumber)) {
      if (pieces_.size() == kMaxPieces) {
        return InvalidArgument("pieces: got more than {}, expected at most that many in a frame",
                               kMaxPieces);
      }
      ok = ReadPiece(&in, &pieces_.emplace_back());
    } else if (tag == Delimited(PushFrame::kCommitIdsFieldNumber) ||
               tag == Varint(PushFrame::kCommitIdsFieldNumber)) {
      ok = ReadIds(&in, tag == Delimited(PushFrame::kCommitIdsFieldNumber), &commit_ids_);
      if (commit_ids_.size() > kMaxPartsPerCall) {
        return InvalidArgument("commit_ids: got more than {}, expected at most that many",
                               kMaxPartsPerCall);
      }
    } else {
      ok = WireFormatLite::SkipField(&in, tag);
    }
    if (!ok) return bad();
  }
  return in.ConsumedEntireMessage() ? OkStatus() : bad();
}

}  // namespace cairn::cache
