#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/flags.h"
#include "tools/cairn/commands/launch_directory.h"
#include "tools/cairn/commands/report_error.h"
#include "tools/cairn/launch/ending.h"
#include "tools/cairn/output/json.h"
#include "tools/cairn/output/progress.h"

namespace cairn::cli {

void AddDown(CLI::App& app, DownOptions& o) {
  CLI::App& c = *app.add_subcommand("down", "Ends what `cairn up` has started");
  c.add_option("--dir", o.directory, kLaunchDirectoryHelp);
  c.add_option("--timeout", o.timeout_s,
               "Seconds for the router, then the workers, and then the nodes, to end their "
               "requests; what is left is killed")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  c.add_flag("--keep", o.keep, "Keep what the nodes have on disk, for the next `cairn up`");
  AddJson(c, o.json, "Print one JSON object");
  c.footer("Example:\n  cairn down");
}

int RunDown(const DownOptions& options) {
  const auto path = LaunchDirectoryOf(options.directory);
  if (!path.ok()) return Fail(path.status());
  // Before the lock is taken, which would leave a file where nothing was started.
  if (const auto there = ReadLaunchState(*path); !there.ok()) return Fail(there.status());
  const auto directory = LaunchDirectory::OpenExisting(*path);
  if (!directory.ok()) return Fail(directory.status());
  const auto state = (*directory)->ReadState();
  if (!state.ok()) return Fail(state.status());

  Progress progress(/*silent=*/false);
  const EndReport report = EndAll(
      *state, std::chrono::milliseconds(static_cast<int64_t>(options.timeout_s * 1000)), progress);
  if (const Status removed = (*directory)->Remove(state->made_directory, options.keep);
      !removed.ok()) {
    return Fail(removed);
  }
  if (options.json) {
    const Json json = {{"directory", *path},
                       {"ended", report.ended},
                       {"killed", report.killed},
                       {"gone", report.gone}};
    std::printf("%s\n", Dump(json).c_str());
    return kExitOk;
  }
  std::printf("%zu processes ended\n", report.ended);
  if (!report.killed.empty()) {
    std::printf("killed, since they did not end in time: %s\n",
                fmt::format("{}", fmt::join(report.killed, ", ")).c_str());
  }
  if (!report.gone.empty()) {
    std::printf("had ended before: %s\n", fmt::format("{}", fmt::join(report.gone, ", ")).c_str());
  }
  return kExitOk;
}

}  // namespace cairn::cli
