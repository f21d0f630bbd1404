#pragma once
// The end of a log, for messages.

#include <string>

namespace cairn::cli {

// The last lines, at most 1,500 bytes. Empty when it cannot be read.
std::string LogTail(const std::string& path);

}  // namespace cairn::cli
