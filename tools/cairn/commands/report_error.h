#pragma once
// How a command says that it failed.

#include <cstdio>
#include <string>

#include "cairn/common/status.h"
#include "tools/cairn/commands/flags.h"
#include "tools/cairn/exit_codes.h"

namespace cairn::cli {

// Prints `cairn: text` to stderr; kExitFailure, so that `return Fail(status);` reads well.
inline int Fail(const Status& status) {
  std::fprintf(stderr, "cairn: %s\n", InFlags(Message(status)).c_str());
  return kExitFailure;
}

// The same for a wrong command line that only the command itself can see.
inline int FailUsage(const std::string& text) {
  std::fprintf(stderr, "cairn: %s\n", InFlags(text).c_str());
  return kExitUsage;
}

}  // namespace cairn::cli
