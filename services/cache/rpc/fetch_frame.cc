#include "services/cache/rpc/fetch_frame.h"

#include <algorithm>
#include <utility>

#include "clients/cpp/wire/convert.h"

namespace cairn::cache {
namespace {

using v1::FetchFrame;
using v1::PartRect;
using v1::Slice;

constexpr uint32_t kVarint = 0, kBytes = 2;
constexpr uint8_t Tag(int field, uint32_t type) {
  return static_cast<uint8_t>(static_cast<uint32_t>(field) << 3 | type);
}

size_t VarintSize(uint64_t value) {
  size_t size = 1;
  while (value >= 0x80) {
    value >>= 7;
    ++size;
  }
  return size;
}

void PutVarint(std::string* out, uint64_t value) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

void PutField(std::string* out, int field, uint64_t value) {
  if (value == 0) return;  // The default is not written.
  out->push_back(static_cast<char>(Tag(field, kVarint)));
  PutVarint(out, value);
}

}  // namespace

void FetchFrameBuilder::Unref(void* refs) {
  auto* const all = static_cast<Refs*>(refs);
  if (all->count.fetch_sub(1, std::memory_order_acq_rel) == 1) delete all;
}

FetchFrameBuilder::~FetchFrameBuilder() {
  if (refs_ != nullptr) Unref(refs_);
}

size_t FetchFrameBuilder::Add(const FetchedSlice& slice, size_t offset) {
  if (full()) return 0;
  const size_t length = std::min(slice.data.size() - offset, data_limit_ - data_bytes_);
  std::string part;
  PutField(&part, PartRect::kLayerBeginFieldNumber, slice.part.layer_begin);
  PutField(&part, PartRect::kLayerEndFieldNumber, slice.part.layer_end);
  PutField(&part, PartRect::kHeadBeginFieldNumber, slice.part.head_begin);
  PutField(&part, PartRect::kHeadEndFieldNumber, slice.part.head_end);
  std::string fields;
  PutField(&fields, Slice::kBlockFieldNumber, slice.block);
  fields.push_back(static_cast<char>(Tag(Slice::kPartFieldNumber, kBytes)));
  PutVarint(&fields, part.size());
  fields += part;
  PutField(&fields, Slice::kLayerFieldNumber, slice.layer);
  PutField(&fields, Slice::kCodecFieldNumber, static_cast<uint64_t>(wire::ToProto(slice.codec)));
  PutField(&fields, Slice::kSliceBytesFieldNumber, slice.data.size());
  PutField(&fields, Slice::kXxh3FieldNumber, slice.xxh3);
  PutField(&fields, Slice::kOffsetFieldNumber, offset);
  PutField(&fields, Slice::kTierFieldNumber, static_cast<uint64_t>(wire::TierToProto(slice.tier)));
  // `data` comes last, so that its bytes end the message; protobuf's fields may come in any order.
  fields.push_back(static_cast<char>(Tag(Slice::kDataFieldNumber, kBytes)));
  PutVarint(&fields, length);

  text_.push_back(static_cast<char>(Tag(FetchFrame::kSlicesFieldNumber, kBytes)));
  PutVarint(&text_, fields.size() + length);
  text_ += fields;
  const std::byte* data = slice.data.data() + offset;
  if (length < kCopyBelow) {
    if (length != 0) text_.append(reinterpret_cast<const char*>(data), length);
  } else {
    FlushText();
    if (refs_ == nullptr) refs_ = new Refs();
    // Neighbours mostly have the same hold.
    if (refs_->holds.empty() || refs_->holds.back() != slice.hold)
      refs_->holds.push_back(slice.hold);
    refs_->count.fetch_add(1, std::memory_order_relaxed);
    // gRPC takes void*, and only reads.
    slices_.emplace_back(const_cast<std::byte*>(data), length, &Unref, refs_);
  }
  data_bytes_ += length;
  ++pieces_;
  return length;
}

void FetchFrameBuilder::Add(const FetchFailure& failure) {
  const auto reason = static_cast<uint64_t>(wire::MissReasonToProto(failure.reason));
  text_.push_back(static_cast<char>(Tag(FetchFrame::kFailedFieldNumber, kBytes)));
  const size_t size = (failure.block == 0 ? 0 : 1 + VarintSize(failure.block)) +
                      (reason == 0 ? 0 : 1 + VarintSize(reason));
  PutVarint(&text_, size);
  PutField(&text_, v1::BlockFailed::kBlockFieldNumber, failure.block);
  PutField(&text_, v1::BlockFailed::kReasonFieldNumber, reason);
  ++pieces_;
}

void FetchFrameBuilder::Add(const v1::MatchResponse& matched) {
  text_.push_back(static_cast<char>(Tag(FetchFrame::kMatchedFieldNumber, kBytes)));
  PutVarint(&text_, matched.ByteSizeLong());
  matched.AppendToString(&text_);
  ++pieces_;
}

void FetchFrameBuilder::FlushText() {
  if (text_.empty()) return;
  slices_.emplace_back(text_);
  text_.clear();
}

grpc::ByteBuffer FetchFrameBuilder::Take(std::shared_ptr<const void> share) {
  FlushText();
  // A frame without fields is legal: a buffer of one empty slice.
  if (slices_.empty()) slices_.emplace_back(std::string());
  grpc::ByteBuffer frame(slices_.data(), slices_.size());
  slices_.clear();
  if (refs_ != nullptr) {
    refs_->share = std::move(share);
    Unref(std::exchange(refs_, nullptr));
  }
  data_bytes_ = 0;
  pieces_ = 0;
  return frame;
}

}  // namespace cairn::cache
