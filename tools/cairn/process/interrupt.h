#pragma once
// Ctrl-C and SIGTERM as a flag, so that the program can put things away before it ends.

#include <chrono>

namespace cairn::cli {

// The first SIGINT or SIGTERM sets the flag, a second one ends the process as if nobody handled it.
void CatchInterrupts();
bool Interrupted();
// Readable from the first signal on, for poll; never to be read. -1 before CatchInterrupts.
int InterruptFd();
// Lets time pass. False, at once: interrupted.
bool PauseUnlessInterrupted(std::chrono::milliseconds time);

}  // namespace cairn::cli
