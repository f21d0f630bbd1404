#pragma once
// Where our own programs are, and what short commands say.

#include <string>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::cli {

// Directory of the running program, without a slash at the end; "." if it cannot be told.
std::string ProgramDirectory();
// The path of a program in the folder of this one.
std::string SiblingProgram(const std::string& name);

// The output of a command, without the newline at the end. argv[0] is looked up in PATH; stderr is
// dropped. UNAVAILABLE when it cannot be run or exits non-zero.
Result<std::string> Capture(const std::vector<std::string>& argv);
// Runs a command to its end and drops what it prints on stdout. INVALID_ARGUMENT: it exited
// non-zero, with what it printed on stderr. UNAVAILABLE: it cannot be run, or a signal ended it.
Status RunToEnd(const std::vector<std::string>& argv);

}  // namespace cairn::cli
