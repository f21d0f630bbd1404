#pragma once
// The first steps of each main, before any thread exists.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::service {

constexpr int kArenas = 4;

// Every program of ours calls it first. `program`: its name, in front of what it says at its end.
// `arenas`: glibc's, each with a lock and with the memory that was freed in it.
//
// - Opens the descriptors 0 to 2 that are closed, on /dev/null. Otherwise the next file or socket
//   gets the number of stderr, and lines for people go into it.
// - A thread or memory that the system refuses ends the process with exit code 1 and one line that
//   says which limit is in the way. A file that may not grow (SIGXFSZ) is an error of that write.
// - Tunes the heap, and turns off gRPC's log and Abseil's checks of locks.
void InitProcess(const std::string& program, int arenas = kArenas);

// The name that this machine or container has for itself, at most 64 characters.
std::string MachineName();

// Closes the descriptors above 2 that the process was started with: a lock, a pipe or a socket of
// its parent would stay open as long as it lives. Keeps those that `words` or a variable CAIRN_*
// names, such as `--config /dev/fd/63`. Only for programs that start no others.
void CloseInherited(const std::vector<std::string>& words);

// The limits that can be in the way of a thread or of memory. nullopt: there is none.
struct Limits {
  std::optional<uint64_t> user_threads = {};   // ulimit -u.
  std::optional<uint64_t> group_tasks = {};    // pids.max of the control group.
  std::optional<uint64_t> address_bytes = {};  // ulimit -v.
  std::optional<uint64_t> file_bytes = {};     // ulimit -f.
};
Limits ReadLimits();

// Advice for an operator about a thread that was refused: "raise the limit of threads (ulimit -u:
// 8)".
std::string ThreadAdvice(const Limits& limits);
// The same for memory.
std::string MemoryAdvice(const Limits& limits);

// The same for an error whose text has the system's words for what such a limit refuses ("File too
// large"), with "; " in front. Empty: no limit is in its way.
std::string AdviceFor(std::string_view error, const Limits& limits);

// Whether the process can have `count` more threads at a time. RESOURCE_EXHAUSTED: it cannot, with
// the advice. Not every library says so when it gets no thread: some go on and wait forever.
Status CheckThreads(size_t count);

// Writes what stdout still holds. DATA_LOSS: it, or something before it, could not be written, so
// that whoever reads it has not got all.
Status FlushOutput();

}  // namespace cairn::service
