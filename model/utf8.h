#pragma once
// UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn::model {

enum class Utf8Kind : uint8_t {
  kComplete,    // A character of `bytes` bytes.
  kIncomplete,  // All that is left begins a character that more bytes could complete.
  kInvalid,     // `bytes` bytes (1 to 3) that no further byte can make valid: one U+FFFD.
};

struct Utf8Step {
  Utf8Kind kind;
  size_t bytes;
};

// Looks at the first character of `text`. REQUIRES: text is not empty.
Utf8Step NextUtf8(std::string_view text);

// Length of the longest prefix that is valid UTF-8.
size_t ValidUtf8Prefix(std::string_view text);

void AppendUtf8(uint32_t code_point, std::string* out);

}  // namespace cairn::model
