#include "protocol/frames/wire_format.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <gtest/gtest.h>

namespace cairn::frames {
namespace {

using ::google::protobuf::internal::WireFormatLite;
using ::google::protobuf::io::CodedOutputStream;

TEST(WireFormatTest, VarintsAreThoseOfProtobuf) {
  for (int bit = 0; bit < 64; ++bit) {
    for (const uint64_t value : {(uint64_t{1} << bit) - 1, uint64_t{1} << bit, ~uint64_t{0}}) {
      uint8_t expected[10];
      const uint8_t* const end = CodedOutputStream::WriteVarint64ToArray(value, expected);
      std::string got;
      PutVarint(&got, value);
      EXPECT_EQ(got, std::string(reinterpret_cast<char*>(expected), end - expected)) << value;
    }
  }
}

TEST(WireFormatTest, TagsAreThoseOfProtobuf) {
  for (const int field : {1, 2, 15, 16, 3000}) {
    EXPECT_EQ(NumberTag(field), WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_VARINT));
    EXPECT_EQ(BytesTag(field),
              WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
  }
}

TEST(WireFormatTest, FieldsAreTagAndValue) {
  std::string out;
  PutNumber(&out, 1, 0);
  PutNumberUnlessZero(&out, 2, 0);
  PutNumberUnlessZero(&out, 2, 300);
  PutBytesHeader(&out, 3, 5);
  EXPECT_EQ(out, std::string("\x08\x00\x10\xac\x02\x1a\x05", 7));
}

}  // namespace
}  // namespace cairn::frames
