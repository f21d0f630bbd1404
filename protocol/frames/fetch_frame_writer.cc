#include "protocol/frames/fetch_frame_writer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "protocol/frames/wire_format.h"
#include "protocol/wire/convert.h"

namespace cairn::frames {
namespace {

std::string Encode(const format::PartRect& part) {
  std::string out;
  PutNumberUnlessZero(&out, v1::PartRect::kLayerBeginFieldNumber, part.layer_begin);
  PutNumberUnlessZero(&out, v1::PartRect::kLayerEndFieldNumber, part.layer_end);
  PutNumberUnlessZero(&out, v1::PartRect::kHeadBeginFieldNumber, part.head_begin);
  PutNumberUnlessZero(&out, v1::PartRect::kHeadEndFieldNumber, part.head_end);
  return out;
}

// A v1.Slice up to the bytes of its data. `data` comes last, so that its bytes end the message:
// protobuf's fields may come in any order.
std::string Encode(const SliceHeader& slice, uint64_t offset, size_t data_bytes) {
  using v1::Slice;
  std::string out;
  out.reserve(96);  // Enough for most slices: one allocation instead of three.
  PutNumberUnlessZero(&out, Slice::kBlockFieldNumber, slice.block);
  const std::string part = Encode(slice.part);
  PutBytesHeader(&out, Slice::kPartFieldNumber, part.size());
  out += part;
  PutNumberUnlessZero(&out, Slice::kLayerFieldNumber, slice.layer);
  PutNumberUnlessZero(&out, Slice::kCodecFieldNumber,
                      static_cast<uint64_t>(wire::ToProto(slice.codec)));
  PutNumberUnlessZero(&out, Slice::kSliceBytesFieldNumber, slice.slice_bytes);
  PutNumberUnlessZero(&out, Slice::kXxh3FieldNumber, slice.xxh3);
  PutNumberUnlessZero(&out, Slice::kOffsetFieldNumber, offset);
  PutNumberUnlessZero(&out, Slice::kTierFieldNumber, static_cast<uint64_t>(slice.tier));
  PutBytesHeader(&out, Slice::kDataFieldNumber, data_bytes);
  return out;
}

}  // namespace

size_t FetchFrameWriter::Add(const SliceHeader& slice, uint64_t offset,
                             std::span<const std::byte> data,
                             const std::shared_ptr<const void>& hold) {
  if (full()) return 0;
  data = data.first(std::min(data.size(), data_limit_ - data_bytes_));
  const std::string fields = Encode(slice, offset, data.size());
  PutBytesHeader(buffer_.fields(), v1::FetchFrame::kSlicesFieldNumber, fields.size() + data.size());
  *buffer_.fields() += fields;
  buffer_.AddData(data, hold);
  data_bytes_ += data.size();
  ++pieces_;
  return data.size();
}

void FetchFrameWriter::Add(const RowsHeader& rows, std::span<const std::byte> data,
                           const std::shared_ptr<const void>& hold) {
  using v1::Rows;
  std::string fields;
  fields.reserve(64);
  PutNumberUnlessZero(&fields, Rows::kBlockFieldNumber, rows.block);
  PutNumberUnlessZero(&fields, Rows::kHeadFieldNumber, rows.head);
  PutNumberUnlessZero(&fields, Rows::kCodecFieldNumber,
                      static_cast<uint64_t>(wire::ToProto(rows.codec)));
  PutFixed64(&fields, Rows::kSliceXxh3FieldNumber, rows.slice_xxh3);
  PutFixed64(&fields, Rows::kXxh3FieldNumber, rows.xxh3);
  PutNumberUnlessZero(&fields, Rows::kTierFieldNumber, static_cast<uint64_t>(rows.tier));
  PutBytesHeader(&fields, Rows::kDataFieldNumber, data.size());
  PutBytesHeader(buffer_.fields(), v1::FetchFrame::kRowsFieldNumber, fields.size() + data.size());
  *buffer_.fields() += fields;
  buffer_.AddData(data, hold);
  data_bytes_ += data.size();
  ++pieces_;
}

void FetchFrameWriter::Add(const FailedBlock& failed) {
  std::string fields;
  PutNumberUnlessZero(&fields, v1::BlockFailed::kBlockFieldNumber, failed.block);
  PutNumberUnlessZero(&fields, v1::BlockFailed::kReasonFieldNumber,
                      static_cast<uint64_t>(failed.reason));
  PutBytesHeader(buffer_.fields(), v1::FetchFrame::kFailedFieldNumber, fields.size());
  *buffer_.fields() += fields;
  ++pieces_;
}

void FetchFrameWriter::Add(const v1::MatchResponse& matched) {
  PutBytesHeader(buffer_.fields(), v1::FetchFrame::kMatchedFieldNumber, matched.ByteSizeLong());
  matched.AppendToString(buffer_.fields());
  ++pieces_;
}

grpc::ByteBuffer FetchFrameWriter::Take(std::shared_ptr<const void> share) {
  data_bytes_ = 0;
  pieces_ = 0;
  return buffer_.Take(std::move(share));
}

}  // namespace cairn::frames
