#pragma once
// The commands. AddX declares the flags of a command, with ranges and help texts, and lets the
// command line write into `options`, which must outlive `app`'s parse. RunX returns what the
// process returns (exit_codes.h) and prints errors to stderr.

#include "tools/cairn/bench/options.h"
#include "tools/cairn/options.h"

namespace CLI {
class App;
}  // namespace CLI

namespace cairn::cli {

void AddGenerate(CLI::App& app, GenerateOptions& options);
int RunGenerate(const GenerateOptions& options);

void AddChat(CLI::App& app, ChatOptions& options);
int RunChat(const ChatOptions& options);

void AddStat(CLI::App& app, StatOptions& options);
int RunStat(const StatOptions& options);
// `stat --cluster`.
int RunClusterStat(const StatOptions& options);

void AddCluster(CLI::App& app, ClusterCommands& options);
// `group` is `cairn cluster` with the one command that was given.
int RunCluster(const CLI::App& group, const ClusterCommands& options);

void AddUp(CLI::App& app, UpOptions& options);
int RunUp(const UpOptions& options);

void AddDown(CLI::App& app, DownOptions& options);
int RunDown(const DownOptions& options);

void AddTop(CLI::App& app, TopOptions& options);
int RunTop(const TopOptions& options);

void AddDoctor(CLI::App& app, DoctorOptions& options);
int RunDoctor(const DoctorOptions& options);

void AddReport(CLI::App& app, ReportOptions& options);
int RunReport(const ReportOptions& options);

void AddFidelity(CLI::App& app, FidelityOptions& options);
int RunFidelity(const FidelityOptions& options);

void AddDemo(CLI::App& app, DemoOptions& options);
int RunDemo(const DemoOptions& options);

void AddReplay(CLI::App& app, ReplayFlags& flags);
// `flags.policy` must be a name of a policy, or kOptimum.
int RunReplay(const ReplayFlags& flags);

void AddSize(CLI::App& app, SizeFlags& flags);
int RunSize(const SizeFlags& flags);

void AddBench(CLI::App& app, bench::BenchFlags& flags);
int RunBench(const bench::BenchFlags& flags);

}  // namespace cairn::cli
