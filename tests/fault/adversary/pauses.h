#pragma once
// How long the machine did not run a thread that only has to wake up. A virtual machine may stop
// for a second: calls that were under way then say nothing about the servers under test.

#include <atomic>
#include <cstdint>
#include <thread>

#include "cairn/common/clock.h"

namespace cairn::fault {

// Thread-safe.
class Pauses {
 public:
  Pauses();
  ~Pauses();

  // The longest one since the last call.
  Duration Take() { return Duration(longest_.exchange(0)); }

 private:
  void Run();

  std::atomic<bool> done_{false};
  std::atomic<Duration::rep> longest_{0};
  std::thread thread_;
};

}  // namespace cairn::fault
