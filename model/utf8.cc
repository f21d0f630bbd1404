#include "model/utf8.h"

namespace cairn::model {

// Table 3-7 of the Unicode standard: the lead byte gives the length and the range of the second
// byte.
Utf8Step NextUtf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Utf8Kind::kComplete, 1};
  if (lead < 0xc2 || lead > 0xf4) return {Utf8Kind::kInvalid, 1};
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  uint8_t low = 0x80, high = 0xbf;
  if (lead == 0xe0) low = 0xa0;
  if (lead == 0xed) high = 0x9f;
  if (lead == 0xf0) low = 0x90;
  if (lead == 0xf4) high = 0x8f;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8Kind::kIncomplete, i};
    if (byte(i) < low || byte(i) > high) return {Utf8Kind::kInvalid, i};
    low = 0x80;
    high = 0xbf;
  }
  return {Utf8Kind::kComplete, length};
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = NextUtf8(text.substr(at));
    if (step.kind != Utf8Kind::kComplete) break;
    at += step.bytes;
  }
  return at;
}

void AppendUtf8(uint32_t c, std::string* out) {
  const auto push = [&](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    push(c);
  } else if (c < 0x800) {
    push(0xc0 | c >> 6);
    push(0x80 | (c & 63));
  } else if (c < 0x10000) {
    push(0xe0 | c >> 12);
    push(0x80 | (c >> 6 & 63));
    push(0x80 | (c & 63));
  } else {
    push(0xf0 | c >> 18);
    push(0x80 | (c >> 12 & 63));
    push(0x80 | (c >> 6 & 63));
    push(0x80 | (c & 63));
  }
}

}  // namespace cairn::model
