#pragma once
// The commands. Each returns what the process returns (exit_codes.h) and prints errors to stderr.

#include "tools/cairn/bench/options.h"
#include "tools/cairn/options.h"

namespace cairn::cli {

int RunGenerate(const GenerateOptions& options);
int RunChat(const ChatOptions& options);
int RunStat(const StatOptions& options);
// `stat --cluster`.
int RunClusterStat(const StatOptions& options);
int RunClusterMembers(const ClusterOptions& options);
int RunClusterLocate(const ClusterOptions& options);
int RunClusterDrain(const ClusterOptions& options);
int RunClusterBump(const ClusterOptions& options);
int RunClusterDropTenant(const ClusterOptions& options);
int RunUp(const UpOptions& options);
int RunDown(const DownOptions& options);
int RunTop(const TopOptions& options);
int RunDoctor(const DoctorOptions& options);
int RunFidelity(const FidelityOptions& options);
int RunDemo(const DemoOptions& options);
// `flags.policy` must be a name of a policy, or kOptimum.
int RunReplay(const ReplayFlags& flags);
int RunSize(const SizeFlags& flags);
int RunBench(const bench::BenchFlags& flags);

}  // namespace cairn::cli
