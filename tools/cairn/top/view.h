#pragma once
// A snapshot as tables, as one line for each process, and as JSON.

#include <string>

#include "tools/cairn/output/json.h"
#include "tools/cairn/output/terminal.h"
#include "tools/cairn/top/snapshot.h"

namespace cairn::cli {

// `before` is the snapshot before, nullptr for the first one: rates are then unknown.
std::string TopText(const Snapshot* before, const Snapshot& now, const Terminal& terminal);
// Off a terminal: lines that begin with '#', with the columns of each kind of process and their
// units, for the start of what TopLines gives again and again.
std::string TopHeader(const Snapshot& now);
// One row for each process: time, kind, name, and the words of the columns, or why it is away.
std::string TopLines(const Snapshot* before, const Snapshot& now);
Json TopJson(const Snapshot* before, const Snapshot& now);

}  // namespace cairn::cli
