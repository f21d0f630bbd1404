#pragma once
// Processor time: our own, and what everybody else took of the machine meanwhile.

#include <sys/types.h>

#include <string_view>
#include <vector>

#include "cairn/common/clock.h"

namespace cairn::cli::bench {

// Seconds of processor time since the machine started, of all processors. `busy` is user, nice and
// system time; `stolen` what the hypervisor gave to other machines.
struct MachineTime {
  double busy = 0;
  double stolen = 0;
};
// The first line of /proc/stat, in ticks of `ticks_per_second`. Zeros when it is no such line.
MachineTime ParseMachineTime(std::string_view line, double ticks_per_second);
// User and system time in the text of /proc/PID/stat. 0 when it is no such text.
double ParseProcessTime(std::string_view text, double ticks_per_second);

// Measures from its making. Not thread-safe.
class CpuMeter {
 public:
  // `children`: processes of the benchmark besides this one.
  explicit CpuMeter(std::vector<pid_t> children);

  struct Use {
    double seconds = 0;        // Seconds of the wall clock.
    double own_seconds = 0;    // Processor time of this process and the children.
    double foreign_cores = 0;  // Cores that others kept busy.
  };
  Use Read() const;

 private:
  double OwnSeconds() const;

  const std::vector<pid_t> children_;
  TimePoint start_;
  MachineTime machine_;
  double own_ = 0;
};

}  // namespace cairn::cli::bench
