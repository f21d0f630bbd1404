#pragma once
// How a test controls the fake NCCL of its own process: a second table of the same library.
//
// Thread-safe.

#include <cstdint>

namespace cairn::link::fake {

struct Control {
  // From now on it acts as `options` say (actions.h), counts from 0 again, and forgets its reports.
  void (*reset)(const char* options) = nullptr;
  // The mistakes of callers, one in each line, as far as `buffer` reaches. Ends with a zero.
  // Forgets them.
  void (*take_reports)(char* buffer, uint64_t bytes) = nullptr;
  // Communicators that exist now.
  uint64_t (*communicators)() = nullptr;
  // How often a function was called: "Send", "CommAbort".
  uint64_t (*calls)(const char* name) = nullptr;
};

using GetControl = const Control* (*)();
inline constexpr char kGetControl[] = "cairn_fake_nccl_control";

}  // namespace cairn::link::fake
