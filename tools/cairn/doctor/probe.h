#pragma once
// Asks the machine and lets checks.h judge.

#include <string>
#include <vector>

#include "tools/cairn/doctor/checks.h"

namespace cairn::cli {

struct ProbeOptions {
  std::string model_path;
  std::string directory;  // Where a disk tier would be. A small file is written there and removed.
};

std::vector<Check> ProbeMachine(const ProbeOptions& options);

// CPU model, CPUs, memory and kernel in one line, for reports.
std::string MachineName();

}  // namespace cairn::cli
