#include "clients/cpp/src/fetch_frame.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <optional>

#include "clients/cpp/wire/convert.h"

namespace cairn::client {
namespace {

using ::google::protobuf::internal::WireFormatLite;
using ::google::protobuf::io::CodedInputStream;

Status Malformed(std::string_view message) {
  return Errorf(StatusCode::kDataLoss, "fetch: malformed {} in a frame from the node", message);
}

// Limits the input to one length-delimited field while it lives.
class FieldScope {
 public:
  explicit FieldScope(CodedInputStream& in) : in_(in) {
    int length = 0;
    if (in.ReadVarintSizeAsInt(&length)) limit_ = in.PushLimit(length);
  }
  ~FieldScope() {
    if (limit_) in_.PopLimit(*limit_);
  }
  FieldScope(const FieldScope&) = delete;
  FieldScope& operator=(const FieldScope&) = delete;
  bool ok() const { return limit_.has_value(); }

 private:
  CodedInputStream& in_;
  std::optional<CodedInputStream::Limit> limit_;
};

// The bytes of a length-delimited field, where they lie.
bool BorrowBytes(CodedInputStream& in, std::vector<std::span<const std::byte>>& chunks) {
  int left = 0;
  if (!in.ReadVarintSizeAsInt(&left)) return false;
  while (left > 0) {
    const void* data = nullptr;
    int size = 0;
    if (!in.GetDirectBufferPointer(&data, &size)) return false;
    size = std::min(size, left);
    chunks.emplace_back(static_cast<const std::byte*>(data), static_cast<size_t>(size));
    if (!in.Skip(size)) return false;
    left -= size;
  }
  return true;
}

constexpr uint32_t Tag(int field, WireFormatLite::WireType type) {
  return static_cast<uint32_t>(field) << 3 | static_cast<uint32_t>(type);
}
constexpr auto kVarint = WireFormatLite::WIRETYPE_VARINT;
constexpr auto kBytes = WireFormatLite::WIRETYPE_LENGTH_DELIMITED;

Status ParseSlice(CodedInputStream& in, FetchFrameView& out) {
  SlicePiece piece;
  v1::PartRect rect;
  uint32_t codec = 0;
  uint32_t tier = 0;
  bool ok = true;
  while (const uint32_t tag = in.ReadTag()) {
    switch (tag) {
      case Tag(v1::Slice::kBlockFieldNumber, kVarint):
        ok = in.ReadVarint32(&piece.slice.block);
        break;
      case Tag(v1::Slice::kPartFieldNumber, kBytes): {
        FieldScope field(in);
        ok = field.ok() && rect.MergeFromCodedStream(&in) && in.ConsumedEntireMessage();
        break;
      }
      case Tag(v1::Slice::kLayerFieldNumber, kVarint):
        ok = in.ReadVarint32(&piece.slice.layer);
        break;
      case Tag(v1::Slice::kCodecFieldNumber, kVarint):
        ok = in.ReadVarint32(&codec);
        break;
      case Tag(v1::Slice::kSliceBytesFieldNumber, kVarint):
        ok = in.ReadVarint64(&piece.slice.slice_bytes);
        break;
      case Tag(v1::Slice::kXxh3FieldNumber, kVarint):
        ok = in.ReadVarint64(&piece.slice.xxh3);
        break;
      case Tag(v1::Slice::kOffsetFieldNumber, kVarint):
        ok = in.ReadVarint64(&piece.offset);
        break;
      case Tag(v1::Slice::kDataFieldNumber, kBytes):
        piece.chunks.clear();  // The last one counts, as in any message.
        ok = BorrowBytes(in, piece.chunks);
        break;
      case Tag(v1::Slice::kTierFieldNumber, kVarint):
        ok = in.ReadVarint32(&tier);
        break;
      default:
        ok = WireFormatLite::SkipField(&in, tag);
    }
    if (!ok) return Malformed("Slice");
  }
  if (!in.ConsumedEntireMessage()) return Malformed("Slice");
  const Result<format::PartRect> part = wire::FromProto(rect, "part");
  if (!part.ok()) return Malformed("PartRect");
  piece.slice.part = *part;
  piece.slice.tier =
      wire::TierFromProto<TierKind>(static_cast<int>(tier)).value_or(TierKind::kHost);
  const Result<format::Codec> known = wire::FromProto(static_cast<v1::Codec>(codec), "codec");
  if (!known.ok()) {
    // A newer node's way of storing numbers: these bytes mean nothing here.
    out.failed.emplace_back(piece.slice.block, MissReason::kRefused);
    return OkStatus();
  }
  piece.slice.codec = *known;
  out.pieces.push_back(std::move(piece));
  return OkStatus();
}

}  // namespace

Result<FetchFrameView> ParseFetchFrame(google::protobuf::io::ZeroCopyInputStream* stream) {
  CodedInputStream in(stream);
  FetchFrameView out;
  while (const uint32_t tag = in.ReadTag()) {
    if (tag == Tag(v1::FetchFrame::kSlicesFieldNumber, kBytes)) {
      FieldScope field(in);
      if (!field.ok()) return Malformed("FetchFrame");
      CAIRN_RETURN_IF_ERROR(ParseSlice(in, out));
    } else if (tag == Tag(v1::FetchFrame::kFailedFieldNumber, kBytes)) {
      FieldScope field(in);
      v1::BlockFailed failed;
      if (!field.ok() || !failed.MergeFromCodedStream(&in) || !in.ConsumedEntireMessage())
        return Malformed("BlockFailed");
      out.failed.emplace_back(failed.block(),
                              wire::MissReasonFromProto<MissReason>(failed.reason()));
    } else if (tag == Tag(v1::FetchFrame::kMatchedFieldNumber, kBytes)) {
      FieldScope field(in);
      if (!out.matched) out.matched.emplace();
      if (!field.ok() || !out.matched->MergeFromCodedStream(&in) || !in.ConsumedEntireMessage())
        return Malformed("MatchResponse");
    } else if (!WireFormatLite::SkipField(&in, tag)) {
      return Malformed("FetchFrame");
    }
  }
  if (!in.ConsumedEntireMessage()) return Malformed("FetchFrame");
  return out;
}

}  // namespace cairn::client
