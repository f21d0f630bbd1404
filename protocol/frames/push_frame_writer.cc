#include "protocol/frames/push_frame_writer.h"

#include <string>

#include "cairn/common/status.h"
#include "cairn/v1/cache.pb.h"
#include "protocol/frames/wire_format.h"
#include "protocol/wire/message_limits.h"

namespace cairn::frames {
namespace {

// Tags, lengths, reservation id and offset of a piece.
constexpr size_t kPieceOverhead = 48;
constexpr size_t kMinFrameBytes = 4096;

}  // namespace

PushFrameWriter::PushFrameWriter(std::string_view session, std::span<const uint64_t> commit,
                                 uint32_t max_frame_bytes)
    : max_bytes_(std::clamp<size_t>(max_frame_bytes == 0 ? wire::kFrameBytes : max_frame_bytes,
                                    kMinFrameBytes, wire::kFrameBytes)) {
  std::string& header = *buffer_.fields();
  PutBytesHeader(&header, v1::PushFrame::kSessionIdFieldNumber, session.size());
  header += session;
  if (!commit.empty()) {
    std::string ids;
    for (const uint64_t id : commit) PutVarint(&ids, id);
    PutBytesHeader(&header, v1::PushFrame::kCommitIdsFieldNumber, ids.size());
    header += ids;
  }
  bytes_ = header.size();
}

bool PushFrameWriter::full() const { return room() < kPieceOverhead + kMinFrameBytes / 4; }

size_t PushFrameWriter::Add(uint64_t reservation, uint64_t offset, std::span<const std::byte> data,
                            const std::shared_ptr<const void>& hold) {
  using Piece = v1::PushFrame::Piece;
  CAIRN_CHECK(!full());
  data = data.first(std::min(data.size(), room() - kPieceOverhead));
  std::string fields;
  PutNumber(&fields, Piece::kReservationIdFieldNumber, reservation);
  PutNumber(&fields, Piece::kOffsetFieldNumber, offset);
  PutBytesHeader(&fields, Piece::kDataFieldNumber, data.size());
  std::string header;
  PutBytesHeader(&header, v1::PushFrame::kPiecesFieldNumber, fields.size() + data.size());
  header += fields;
  *buffer_.fields() += header;
  buffer_.AddData(data, hold);
  bytes_ += header.size() + data.size();
  return data.size();
}

grpc::ByteBuffer PushFrameWriter::Take() {
  bytes_ = 0;
  return buffer_.Take();
}

}  // namespace cairn::frames
