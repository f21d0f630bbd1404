#pragma once
// Small files that people write with any editor: keys, secrets, lists.
//
// The same content may come with a byte order mark in front (editors on Windows), with CRLF, and
// with or without a line break at its end (`echo`, `printf`). None of that is part of what the file
// says.

#include <cstddef>
#include <string>
#include <string_view>

#include "cairn/common/status.h"

namespace cairn::config {

// Without the mark of UTF-8 that some editors write in front.
std::string_view WithoutByteOrderMark(std::string_view text);

// Text in UTF-8, without a byte order mark, with its line breaks as they are. Errors name `field`
// and the file. FAILED_PRECONDITION: it cannot be read. INVALID_ARGUMENT: it has more than
// `max_bytes`, or it is UTF-16.
Result<std::string> ReadTextFile(const std::string& path, const std::string& field,
                                 size_t max_bytes = 1 << 20);

// One secret, of text or of any bytes: without a byte order mark, and without the line breaks at
// its end. FAILED_PRECONDITION: it cannot be read, is empty, or has more than 64 KiB. The error
// does not show what is in it.
Result<std::string> ReadSecretFile(const std::string& path, const std::string& field);

}  // namespace cairn::config
