#pragma once
// A snapshot as tables, as one line for each process, and as JSON.

#include <string>

#include "tools/cairn/output/json.h"
#include "tools/cairn/output/terminal.h"
#include "tools/cairn/top/snapshot.h"

namespace cairn::cli {

// `before` is the snapshot before, nullptr for the first one: rates are then unknown.
std::string TopText(const Snapshot* before, const Snapshot& now, const Terminal& terminal);
// Words without spaces, each NAME=VALUE, behind time and name of the process.
std::string TopLines(const Snapshot* before, const Snapshot& now);
Json TopJson(const Snapshot* before, const Snapshot& now);

}  // namespace cairn::cli
