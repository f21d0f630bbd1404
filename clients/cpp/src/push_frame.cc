#include "clients/cpp/src/push_frame.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>

#include "cairn/v1/cache.pb.h"
#include "clients/cpp/wire/limits.h"
#include "services/common/status/status.h"

namespace cairn::client {
namespace {

using ::google::protobuf::io::CodedOutputStream;

// Tags, lengths, reservation id and offset of a piece.
constexpr size_t kPieceOverhead = 48;
constexpr size_t kMinFrameBytes = 4096;
constexpr uint32_t kVarint = 0;
constexpr uint32_t kBytes = 2;

void PutVarint(uint64_t value, std::string* out) {
  uint8_t buffer[10];
  const uint8_t* const end = CodedOutputStream::WriteVarint64ToArray(value, buffer);
  out->append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(end - buffer));
}

void PutTag(int field, uint32_t type, std::string* out) {
  PutVarint(static_cast<uint32_t>(field) << 3 | type, out);
}

void PutNumber(int field, uint64_t value, std::string* out) {
  PutTag(field, kVarint, out);
  PutVarint(value, out);
}

grpc::Slice SliceOf(std::span<const std::byte> data, const std::shared_ptr<const void>& hold) {
  if (hold == nullptr) return grpc::Slice(data.data(), data.size());
  // gRPC only reads them; its interface knows no const.
  auto* const bytes = const_cast<std::byte*>(data.data());
  auto* const keep = new std::shared_ptr<const void>(hold);
  return grpc::Slice(
      bytes, data.size(), [](void* p) { delete static_cast<std::shared_ptr<const void>*>(p); },
      keep);
}

}  // namespace

PushFrameWriter::PushFrameWriter(const std::string& session, std::span<const uint64_t> commit,
                                 uint32_t max_frame_bytes)
    : max_bytes_(std::clamp<size_t>(max_frame_bytes == 0 ? wire::kFrameBytes : max_frame_bytes,
                                    kMinFrameBytes, wire::kFrameBytes)) {
  std::string header;
  PutTag(v1::PushFrame::kSessionIdFieldNumber, kBytes, &header);
  PutVarint(session.size(), &header);
  header += session;
  if (!commit.empty()) {
    std::string ids;
    for (const uint64_t id : commit) PutVarint(id, &ids);
    PutTag(v1::PushFrame::kCommitIdsFieldNumber, kBytes, &header);
    PutVarint(ids.size(), &header);
    header += ids;
  }
  bytes_ = header.size();
  slices_.emplace_back(header);
}

bool PushFrameWriter::full() const { return room() < kPieceOverhead + kMinFrameBytes / 4; }

size_t PushFrameWriter::Add(uint64_t reservation, uint64_t offset, std::span<const std::byte> data,
                            const std::shared_ptr<const void>& hold) {
  CAIRN_CHECK(!full());
  data = data.first(std::min(data.size(), room() - kPieceOverhead));
  std::string fields;
  PutNumber(v1::PushFrame::Piece::kReservationIdFieldNumber, reservation, &fields);
  PutNumber(v1::PushFrame::Piece::kOffsetFieldNumber, offset, &fields);
  PutTag(v1::PushFrame::Piece::kDataFieldNumber, kBytes, &fields);
  PutVarint(data.size(), &fields);
  std::string header;
  PutTag(v1::PushFrame::kPiecesFieldNumber, kBytes, &header);
  PutVarint(fields.size() + data.size(), &header);
  header += fields;
  slices_.emplace_back(header);
  slices_.push_back(SliceOf(data, hold));
  bytes_ += header.size() + data.size();
  return data.size();
}

grpc::ByteBuffer PushFrameWriter::Take() {
  grpc::ByteBuffer frame(slices_.data(), slices_.size());
  slices_.clear();
  bytes_ = 0;
  return frame;
}

}  // namespace cairn::client
