#pragma once
// The commands. Each returns what the process returns (exit_codes.h) and prints errors to stderr.

#include "tools/cairn/bench/options.h"
#include "tools/cairn/options.h"

namespace cairn::cli {

int RunGenerate(const GenerateOptions& options);
int RunChat(const ChatOptions& options);
int RunStat(const StatOptions& options);
int RunDoctor(const DoctorOptions& options);
int RunFidelity(const FidelityOptions& options);
int RunDemo(const DemoOptions& options);
int RunBench(const bench::BenchFlags& flags);

}  // namespace cairn::cli
