#pragma once
// Ctrl-C and SIGTERM as a flag, so that the program can put things away before it ends.

namespace cairn::cli {

// The first SIGINT or SIGTERM sets the flag, a second one ends the process as if nobody handled it.
void CatchInterrupts();
bool Interrupted();

}  // namespace cairn::cli
