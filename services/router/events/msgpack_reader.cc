#include "services/router/events/msgpack_reader.h"

namespace cairn::router {
namespace {

using Kind = MsgpackReader::Kind;

Kind KindOf(uint8_t first) {
  if (first <= 0x7f || first >= 0xe0) return Kind::kInteger;
  if (first <= 0x8f) return Kind::kMap;
  if (first <= 0x9f) return Kind::kArray;
  if (first <= 0xbf) return Kind::kText;
  switch (first) {
    case 0xc0:
      return Kind::kNil;
    case 0xc2:
    case 0xc3:
      return Kind::kBool;
    case 0xc4:
    case 0xc5:
    case 0xc6:
      return Kind::kBytes;
    case 0xca:
    case 0xcb:
      return Kind::kFloat;
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf:
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
      return Kind::kInteger;
    case 0xd9:
    case 0xda:
    case 0xdb:
      return Kind::kText;
    case 0xdc:
    case 0xdd:
      return Kind::kArray;
    case 0xde:
    case 0xdf:
      return Kind::kMap;
    default:
      return Kind::kOther;  // Extensions, and the byte that means nothing.
  }
}

// Bytes of an extension's value with its type, for the ones of a fixed size. 0: another first byte.
size_t FixedExtension(uint8_t first) {
  return first >= 0xd4 && first <= 0xd8 ? 1 + (size_t{1} << (first - 0xd4)) : 0;
}

}  // namespace

std::string_view MsgpackReader::Name(Kind kind) {
  switch (kind) {
    case Kind::kNil:
      return "nil";
    case Kind::kBool:
      return "a boolean";
    case Kind::kInteger:
      return "an integer";
    case Kind::kFloat:
      return "a float";
    case Kind::kText:
      return "a text";
    case Kind::kBytes:
      return "bytes";
    case Kind::kArray:
      return "an array";
    case Kind::kMap:
      return "a map";
    case Kind::kOther:
      return "an extension";
  }
  return "nothing";
}

Status MsgpackReader::CutShort() { return InvalidArgument("the message is cut short"); }

Status MsgpackReader::Wrong(std::string_view expected) const {
  if (rest_.empty()) return CutShort();
  return InvalidArgument("got {}, expected {}", Name(KindOf(static_cast<uint8_t>(rest_[0]))),
                         expected);
}

std::optional<uint64_t> MsgpackReader::NumberAfterFirst(size_t size) const {
  if (rest_.size() < 1 + size) return std::nullopt;
  uint64_t number = 0;
  for (size_t i = 1; i <= size; ++i) number = number << 8 | static_cast<uint8_t>(rest_[i]);
  return number;
}

Result<Kind> MsgpackReader::Next() const {
  if (rest_.empty()) return CutShort();
  return KindOf(static_cast<uint8_t>(rest_[0]));
}

bool MsgpackReader::TakeNil() {
  if (rest_.empty() || static_cast<uint8_t>(rest_[0]) != 0xc0) return false;
  rest_.remove_prefix(1);
  return true;
}

Result<MsgpackReader::Integer> MsgpackReader::TakeInteger() {
  if (rest_.empty()) return CutShort();
  const auto first = static_cast<uint8_t>(rest_[0]);
  if (KindOf(first) != Kind::kInteger) return Wrong("an integer");
  if (first <= 0x7f || first >= 0xe0) {
    rest_.remove_prefix(1);
    const auto value = static_cast<int8_t>(first);
    return Integer{.bits = static_cast<uint64_t>(int64_t{value}), .negative = value < 0};
  }
  const bool is_signed = first >= 0xd0;
  const size_t size = size_t{1} << (first & 3);
  const auto number = NumberAfterFirst(size);
  if (!number) return CutShort();
  rest_.remove_prefix(1 + size);
  Integer value{.bits = *number};
  if (is_signed) {
    const unsigned unused = static_cast<unsigned>(64 - 8 * size);
    const int64_t extended = static_cast<int64_t>(*number << unused) >> unused;
    value = {.bits = static_cast<uint64_t>(extended), .negative = extended < 0};
  }
  return value;
}

Result<uint64_t> MsgpackReader::TakeNumber(uint64_t most) {
  CAIRN_ASSIGN_OR_RETURN(const Integer value, TakeInteger());
  if (value.negative) {
    return InvalidArgument("got {}, expected 0 to {}", static_cast<int64_t>(value.bits), most);
  }
  if (value.bits > most) return InvalidArgument("got {}, expected 0 to {}", value.bits, most);
  return value.bits;
}

Status MsgpackReader::TakeReal() {
  if (rest_.empty()) return CutShort();
  const auto first = static_cast<uint8_t>(rest_[0]);
  if (KindOf(first) == Kind::kInteger) return TakeInteger().status();
  if (KindOf(first) != Kind::kFloat) return Wrong("a number");
  return Skip();
}

std::optional<size_t> MsgpackReader::TextAt(size_t* length) const {
  const auto first = static_cast<uint8_t>(rest_[0]);
  if (first >= 0xa0 && first <= 0xbf) {
    *length = first & 0x1f;
    return 1;
  }
  // 1, 2 or 4 bytes of length: c4 to c6 and d9 to db.
  const size_t size = size_t{1} << (first >= 0xd9 ? first - 0xd9 : first - 0xc4);
  const auto number = NumberAfterFirst(size);
  if (!number) return std::nullopt;
  *length = *number;
  return 1 + size;
}

Result<std::string_view> MsgpackReader::TakeText() {
  if (rest_.empty()) return CutShort();
  const Kind kind = KindOf(static_cast<uint8_t>(rest_[0]));
  if (kind != Kind::kText && kind != Kind::kBytes) return Wrong("a text");
  size_t length = 0;
  const auto begin = TextAt(&length);
  if (!begin || length > rest_.size() - *begin) return CutShort();
  const std::string_view text = rest_.substr(*begin, length);
  rest_.remove_prefix(*begin + length);
  return text;
}

Result<uint32_t> MsgpackReader::TakeCount(Kind kind, std::string_view expected) {
  if (rest_.empty()) return CutShort();
  const auto first = static_cast<uint8_t>(rest_[0]);
  if (KindOf(first) != kind) return Wrong(expected);
  uint64_t count = first & 0x0f;
  size_t size = 0;
  if (first >= 0xdc) {
    size = first % 2 == 0 ? 2 : 4;  // dc and de, dd and df.
    const auto number = NumberAfterFirst(size);
    if (!number) return CutShort();
    count = *number;
  }
  rest_.remove_prefix(1 + size);
  if (count > rest_.size()) return CutShort();
  return static_cast<uint32_t>(count);
}

Result<uint32_t> MsgpackReader::TakeArray() { return TakeCount(Kind::kArray, "an array"); }
Result<uint32_t> MsgpackReader::TakeMap() { return TakeCount(Kind::kMap, "a map"); }

Status MsgpackReader::Skip(int depth) {
  if (rest_.empty()) return CutShort();
  const auto first = static_cast<uint8_t>(rest_[0]);
  size_t size = 0;
  switch (KindOf(first)) {
    case Kind::kNil:
    case Kind::kBool:
      size = 1;
      break;
    case Kind::kInteger:
      return TakeInteger().status();
    case Kind::kFloat:
      size = first == 0xca ? 5 : 9;
      break;
    case Kind::kText:
    case Kind::kBytes:
      return TakeText().status();
    case Kind::kArray:
    case Kind::kMap: {
      if (depth <= 0) return InvalidArgument("values are nested too deep");
      const bool map = KindOf(first) == Kind::kMap;
      CAIRN_ASSIGN_OR_RETURN(uint64_t count, map ? TakeMap() : TakeArray());
      if (map) count *= 2;
      while (count-- > 0) CAIRN_RETURN_IF_ERROR(Skip(depth - 1));
      return OkStatus();
    }
    case Kind::kOther: {
      if (first == 0xc1) return InvalidArgument("got the byte c1, which means nothing");
      size = 1 + FixedExtension(first);
      if (size == 1) {  // c7 to c9: 1, 2 or 4 bytes of length, and one of type.
        const size_t bytes = size_t{1} << (first - 0xc7);
        const auto length = NumberAfterFirst(bytes);
        if (!length) return CutShort();
        size = 1 + bytes + 1 + *length;
      }
      break;
    }
  }
  if (size > rest_.size()) return CutShort();
  rest_.remove_prefix(size);
  return OkStatus();
}

}  // namespace cairn::router
