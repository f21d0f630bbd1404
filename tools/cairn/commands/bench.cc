#include <sys/resource.h>

#include <cstdio>

#include "tools/cairn/bench/cpu_meter.h"
#include "tools/cairn/bench/report.h"
#include "tools/cairn/bench/test_node.h"
#include "tools/cairn/bench/trials.h"
#include "tools/cairn/bench/workloads.h"
#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/open_worker.h"
#include "tools/cairn/commands/report_error.h"
#include "tools/cairn/demo/texts.h"
#include "tools/cairn/output/progress.h"

namespace cairn::cli {
namespace {

// A thousand connections need as many descriptors, here and in the node that we start.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

Result<bench::Report> Measure(const bench::BenchOptions& options, Progress& progress) {
  progress.Doing("preparing");
  CAIRN_ASSIGN_OR_RETURN(const bench::YardstickBuffers buffers,
                         bench::YardstickBuffers::Allocate());
  std::vector<std::unique_ptr<bench::Yardstick>> yardsticks;
  yardsticks.push_back(bench::NewMemcpyYardstick(buffers));
  yardsticks.push_back(bench::NewTcpYardstick(buffers, ""));
  for (const std::string& name : options.tcp)
    yardsticks.push_back(bench::NewTcpYardstick(buffers, name));

  std::string no_uring;
  if (options.workload == bench::WorkloadKind::kDisk ||
      options.workload == bench::WorkloadKind::kPrefetch) {
    CAIRN_ASSIGN_OR_RETURN(const auto directory,
                           bench::TemporaryDirectory::Make(options.directory));
    auto both = bench::NewUringYardsticks(buffers, directory.path());
    if (both.ok()) {
      for (auto& yardstick : *both) yardsticks.push_back(std::move(yardstick));
    } else {
      no_uring = Message(both.status());
    }
  }

  const std::unique_ptr<bench::Workload> workload = bench::NewWorkload(options);
  CAIRN_RETURN_IF_ERROR(workload->Prepare());
  bench::Report report{.options = options, .trials = {}, .facts = {}, .yardsticks = {}};
  CAIRN_ASSIGN_OR_RETURN(report.trials,
                         bench::RunTrials(
                             *workload, yardsticks,
                             {.repeat = options.repeat,
                              .most_dropped = 2 * options.repeat,
                              .seconds = options.seconds},
                             [&]() -> std::function<double()> {
                               return [meter = bench::CpuMeter(workload->Children())] {
                                 return meter.Read().foreign_cores;
                               };
                             },
                             [&](const std::string& text) { progress.Doing(text); }));
  report.facts = bench::MachineFacts();
  for (auto& fact : workload->Facts()) report.facts.push_back(std::move(fact));
  if (!no_uring.empty()) report.facts.emplace_back("no io_uring yardstick", no_uring);
  for (const auto& yardstick : yardsticks)
    report.yardsticks.emplace_back(yardstick->name(), yardstick->description());
  return report;
}

}  // namespace

int RunBench(const bench::BenchFlags& flags) {
  auto options = bench::ResolveOptions(flags);
  if (!options.ok()) return FailUsage("bench: " + Message(options.status()));
  if (options->workload == bench::WorkloadKind::kTtft) {
    auto prompt = flags.prompt_file.empty() ? Result<std::string>(BuiltInTexts().shared_system)
                                            : ReadText(flags.prompt_file);
    if (!prompt.ok()) return Fail(prompt.status());
    options->prompt = *std::move(prompt);
  }
  RaiseFileLimit();
  Progress progress(flags.json);
  const auto report = Measure(*options, progress);
  progress.Clear();
  if (!report.ok()) return Fail(report.status());
  if (flags.json) {
    std::printf("%s\n", Dump(bench::ToJson(*report)).c_str());
  } else {
    std::printf("%s", bench::ToText(*report, Terminal::Detect(stdout)).c_str());
  }
  return kExitOk;
}

}  // namespace cairn::cli
