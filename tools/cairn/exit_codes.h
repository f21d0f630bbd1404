#pragma once
// The codes that `cairn` returns to the shell.

namespace cairn::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;        // The command ran and did not succeed.
inline constexpr int kExitUsage = 2;          // The command line was wrong: nothing was done.
inline constexpr int kExitUnknown = 2;        // For `stat --cluster`: no node could be asked.
inline constexpr int kExitInterrupted = 130;  // Ctrl-C, as shells report it.

}  // namespace cairn::cli
