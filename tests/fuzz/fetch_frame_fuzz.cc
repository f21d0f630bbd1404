// Frames of a node that may lie: nothing is read out of bounds, and what is understood is what
// protobuf's own reader understands.

#include <cstdlib>
#include <string>

#include "protocol/frames/fetch_frame_reader.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/received_frame.h"

namespace {

using namespace cairn;

void Expect(bool condition) {
  if (!condition) std::abort();
}

bool IsKnown(v1::Codec codec) {
  return codec >= 0 && codec <= static_cast<int>(format::kLastCodec);
}

void ReadFrame(const std::string& bytes, size_t cut) {
  grpc::ByteBuffer received = fuzz::Received(bytes, cut);
  const auto view = frames::ReadFetchFrame(&received);
  v1::FetchFrame expected;
  // Protobuf's reader is stricter in places that do not matter, such as groups in fields that
  // nobody knows.
  if (!view.ok() || !expected.ParseFromString(bytes)) return;
  auto piece = view->pieces.begin();
  size_t refused = 0;
  for (const v1::Slice& slice : expected.slices()) {
    if (!IsKnown(slice.codec())) {
      ++refused;
      continue;
    }
    Expect(piece != view->pieces.end());
    const frames::SliceHeader& header = piece->slice;
    Expect(header.block == slice.block() && header.layer == slice.layer());
    Expect(header.part.layer_begin == slice.part().layer_begin() &&
           header.part.layer_end == slice.part().layer_end() &&
           header.part.head_begin == slice.part().head_begin() &&
           header.part.head_end == slice.part().head_end());
    Expect(static_cast<int>(header.codec) == slice.codec() && header.tier == slice.tier());
    Expect(header.slice_bytes == slice.slice_bytes() && header.xxh3 == slice.xxh3());
    Expect(piece->offset == slice.offset() && fuzz::Join(piece->data) == slice.data());
    ++piece;
  }
  Expect(piece == view->pieces.end());
  auto group = view->rows.begin();
  for (const v1::Rows& rows : expected.rows()) {
    if (!IsKnown(rows.codec())) {
      ++refused;
      continue;
    }
    Expect(group != view->rows.end());
    const frames::RowsHeader& header = group->rows;
    Expect(header.block == rows.block() && header.head == rows.head());
    Expect(static_cast<int>(header.codec) == rows.codec() && header.tier == rows.tier());
    Expect(header.slice_xxh3 == rows.slice_xxh3() && header.xxh3 == rows.xxh3());
    Expect(fuzz::Join(group->data) == rows.data());
    ++group;
  }
  Expect(group == view->rows.end());
  Expect(view->failed.size() == refused + static_cast<size_t>(expected.failed_size()));
  Expect(view->matched.has_value() == expected.has_matched());
  if (view->matched)
    Expect(view->matched->SerializeAsString() == expected.matched().SerializeAsString());
}

}  // namespace

// The first byte: how the bytes are cut into received slices. The rest is cut into frames at
// 0xf1 0xa3 0x3e.
CAIRN_FUZZ_ENTRY(fetch_frame)(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string all(reinterpret_cast<const char*>(data) + 1, size - 1);
  for (size_t at = 0; at <= all.size();) {
    const size_t end = std::min(all.find("\xf1\xa3\x3e", at), all.size());
    ReadFrame(all.substr(at, end - at), 1u + (data[0] & 0x3f));
    at = end + 3;
  }
  return 0;
}
