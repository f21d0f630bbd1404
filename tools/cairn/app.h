#pragma once
// The command line of `cairn`: what it accepts, in one place.

namespace cairn::cli {

// Parses, runs the command, returns the exit code (exit_codes.h).
int RunApp(int argc, char** argv);

}  // namespace cairn::cli
