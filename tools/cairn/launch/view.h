#pragma once
// The processes that were started, for people and for programs.

#include <string>

#include "tools/cairn/launch/state.h"
#include "tools/cairn/output/json.h"
#include "tools/cairn/output/terminal.h"

namespace cairn::cli {

std::string LaunchText(const LaunchState& state, const std::string& directory,
                       const Terminal& terminal);
Json LaunchJson(const LaunchState& state, const std::string& directory);
// For a router that was to serve at the default port: a line that says where it serves instead.
// Empty: it serves there.
std::string PortNote(const LaunchState& state);
// Commands to go on with, which a shell in this folder takes as they are. `given_directory`: as
// --dir said it, empty for the default. `program`: the path of `cairn`.
std::string NextSteps(const LaunchState& state, const std::string& given_directory,
                      const std::string& program);

}  // namespace cairn::cli
