#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "tools/cairn/bench/cpu_meter.h"
#include "tools/cairn/bench/report.h"
#include "tools/cairn/bench/test_node.h"
#include "tools/cairn/bench/trials.h"
#include "tools/cairn/bench/workloads.h"
#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/flags.h"
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
  for (const std::string& name : options.tcp) {
    yardsticks.push_back(bench::NewTcpYardstick(buffers, name));
  }

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
  for (const auto& yardstick : yardsticks) {
    report.yardsticks.emplace_back(yardstick->name(), yardstick->description());
  }
  return report;
}

}  // namespace

void AddBench(CLI::App& app, bench::BenchFlags& o) {
  CLI::App& c = *app.add_subcommand(
      "bench", "Measures a cache node and compares it with what memory and network can do");
  std::string known;
  for (const std::string& name : bench::WorkloadNames()) {
    known += (known.empty() ? "" : ", ") + name;
  }
  c.add_option("workload", o.workload, known)->required();
  c.add_option("--cache", o.cache, "Measure the node at HOST:PORT instead of starting one");
  AddTlsFlags(c, o.tls);
  c.add_option("--size", o.size,
               "Bytes of a block, such as 64KiB; default 1MiB, for exists and match 4KiB");
  c.add_option("--data", o.data, "Bytes of all blocks; default 256MiB, larger than any cache");
  c.add_option("--layers", o.layers, "Number of slices of a block, each with its own checksum")
      ->check(CLI::Range(1u, 1024u))
      ->capture_default_str();
  c.add_option("--batch", o.batch, "Blocks or keys of a call; default 1, for exists and match 1024")
      ->check(CLI::Range(1u, 65536u));
  c.add_option("--depth", o.depth, "Calls in flight of each client; default 4")
      ->check(CLI::Range(1u, 1024u));
  c.add_option("--clients", o.clients,
               "Clients, each with its own connection; default 1, for sessions 1000")
      ->check(CLI::Range(1u, 4096u));
  c.add_option("--path", o.path,
               "auto: shared memory if the node offers it; grpc: never; local: only shared memory")
      ->check(CLI::IsMember({"auto", "grpc", "local"}))
      ->capture_default_str();
  c.add_option("--spin", o.spin,
               "Shared memory: how long client and node look for messages before they sleep, such "
               "as 50us; auto: 150us with more than one CPU");
  c.add_option("--seconds", o.seconds, "Measured time of a trial")
      ->check(CLI::Range(0.001, 600.0))
      ->capture_default_str();
  c.add_option("--repeat", o.repeat, "Number of trials, with the yardsticks between them")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  c.add_flag(
      "--verify,!--no-verify", o.verify,
      "Compare checksums during the fetch, as clients do; the result is compared in any case");
  c.add_flag("--lookup", o.lookup, "get: each call matches and leases its blocks first");
  c.add_flag("--lease,!--no-lease", o.lease, "match: take a lease and give it back at once");
  c.add_flag("--lent", o.lent, "get: use the bytes in place, without a copy");
  c.add_option("--dir", o.directory,
               "Directory for logs and the node's disk; default: a temporary one");
  c.add_option("--model", o.model, "ttft: GGUF file")
      ->envname("CAIRN_MODEL")
      ->capture_default_str();
  c.add_option("--prompt-file", o.prompt_file,
               "ttft: file with the prompt; default a built-in text");
  c.add_option("--tcp", o.tcp, "Also measure raw TCP with this congestion control, such as cubic");
  AddJson(c, o.json, "Print one JSON object");
  c.footer(
      "A trial is dropped and repeated if other processes used more than a fifth of a core.\n"
      "GB is 1e9 bytes of blocks. Each ratio is the median of the ratios of the trials.\n"
      "Example:\n"
      "  cairn bench get --size 64KiB --batch 16 --depth 1 --path grpc\n"
      "  cairn bench put --json");
}

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
