#pragma once
// Ends a process that cannot end by itself: threads that wait for a device that hangs cannot be
// joined, and their memory cannot be freed.

#include "cairn/common/clock.h"

namespace cairn::cache {

// After `limit` the process ends with `code`, if it still runs, after a line in the log. Nothing is
// flushed then. May be called again, for an earlier end. Any thread.
void EndProcessAfter(Duration limit, int code);

}  // namespace cairn::cache
