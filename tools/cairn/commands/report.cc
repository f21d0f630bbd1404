#include "tools/cairn/report/report.h"

#include <fmt/chrono.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <ctime>

#include "common/config/version.h"
#include "common/metrics/admin_server.h"
#include "tools/cairn/cluster/grpc_nodes.h"
#include "tools/cairn/cluster/survey_view.h"
#include "tools/cairn/commands/addresses.h"
#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/default_target.h"
#include "tools/cairn/commands/flags.h"
#include "tools/cairn/commands/launch_directory.h"
#include "tools/cairn/commands/report_error.h"
#include "tools/cairn/commands/stat_view.h"
#include "tools/cairn/doctor/probe.h"
#include "tools/cairn/output/progress.h"

namespace cairn::cli {
namespace {

std::string Machine() {
  std::string text = MachineName() + "\n";
  for (const Check& check : ProbeMachine({.model_path = "", .directory = "."})) {
    if (check.name == "model") continue;  // None is meant.
    text += fmt::format("{:<5} {:<14} {}\n", Name(check.verdict), check.name, check.found);
  }
  return text;
}

// Asks for the parts, in the order of the report.
class Collector {
 public:
  explicit Collector(const ReportOptions& options)
      : timeout_(
            std::chrono::duration_cast<Duration>(std::chrono::duration<double>(options.timeout_s))),
        nodes_(NewClusterNodes(options.tls, timeout_)) {}

  void Add(std::string title, Result<std::string> text) {
    progress_.Done(text.ok() ? title : fmt::format("{}: {}", title, Why(text.status())));
    if (!text.ok()) text = Status(text.status().code(), Why(text.status()));
    parts_.push_back({std::move(title), std::move(text)});
  }
  void AddNode(const std::string& name, const std::string& address) {
    const auto stats = nodes_->Stat(address);
    if (stats.ok()) {
      const auto namespaces = nodes_->Namespaces(address);
      Add(name + ": stat",
          DumpPretty(namespaces.ok()
                         ? StatJson(*stats, *namespaces)
                         : StatJsonWithout(*stats, InFlags(Message(namespaces.status())))));
    } else {
      Add(name + ": stat", stats.status());
    }
    const auto members = nodes_->Members(address);
    Add(name + ": members",
        members.ok() ? Result<std::string>(DumpPretty(MembersJson(*members))) : members.status());
  }
  void AddAdmin(const std::string& name, const std::string& address) {
    // Not ready is an answer, too; silence is none.
    const auto ready = metrics::HttpAsk(address, "/readyz", timeout_);
    Add(name + ": state",
        ready.ok() ? Result<std::string>(fmt::format("{} {}", ready->status, ready->body))
                   : ready.status());
    Add(name + ": metrics", metrics::HttpGet(address, "/metrics", timeout_));
  }
  std::vector<ReportPart> Take() { return std::move(parts_); }

 private:
  static std::string Why(const Status& status) { return InFlags(Message(status)); }

  const Duration timeout_;
  const std::unique_ptr<ClusterNodes> nodes_;
  Progress progress_{/*silent=*/false};
  std::vector<ReportPart> parts_;
};

// The processes of `cairn up`, with their logs; else the node at the default address.
void AddLaunched(const ReportOptions& options, Collector* collector) {
  const auto directory = options.directory.empty() ? DefaultLaunchDirectory(/*make=*/false)
                                                   : LaunchDirectoryOf(options.directory);
  const auto state = directory.ok() ? ReadLaunchState(*directory) : directory.status();
  if (!state.ok()) {
    const auto node = options.directory.empty() ? FindDefault(Seek::kNode, ThisMachine())
                                                : Result<DefaultTarget>(state.status());
    if (!node.ok()) return collector->Add("processes", node.status());
    return collector->AddNode("node at " + node->address, node->address);
  }
  for (const LaunchedProcess& process : state->processes) {
    if (process.role == Role::kNode && !process.grpc.empty()) {
      collector->AddNode(process.name, process.grpc);
    }
    if (!process.admin.empty()) collector->AddAdmin(process.name, process.admin);
    collector->Add(process.name + ": log", ReadTail(LaunchLog(*directory, process.name)));
  }
}

}  // namespace

void AddReport(CLI::App& app, ReportOptions& o) {
  CLI::App& c = *app.add_subcommand(
      "report", "Packs what a report of a fault needs into one file, without secrets");
  c.add_option("--out", o.out, "File to make; -: standard output. Default: cairn-report-TIME.txt");
  CLI::Option* directory = c.add_option("--dir", o.directory, kLaunchDirectoryHelp);
  c.add_option("--cache", o.cache,
               "Instead of what `cairn up` started: nodes to ask, HOST:PORT with commas")
      ->excludes(directory);
  c.add_option(
       "--admin", o.admins,
       "Admin ports of nodes, workers and routers, HOST:PORT, for state and metrics; may be "
       "given several times")
      ->delimiter(',')
      ->excludes(directory);
  c.add_option("--config", o.configs, "Files of settings; may be given several times");
  c.add_option("--log", o.logs,
               "Logs, of which the last 1 MiB counts; -: standard input; may be given several "
               "times");
  c.add_option("--timeout", o.timeout_s, "Seconds to wait for each answer")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  AddTlsFlags(c, o.tls);
  AddJson(c, o.json, "Print one JSON object: the file, and what is in it");
  c.footer(
      "A part that is missing is named with the reason, and the report is made all the same.\n"
      "Examples:\n"
      "  cairn report\n"
      "  kubectl logs cairn-0 | cairn report --cache 127.0.0.1:7400 --admin 127.0.0.1:7401 --log "
      "-");
}

int RunReport(const ReportOptions& options) {
  if (options.json && options.out == "-") {
    return FailUsage("--json: the report itself is on standard output, expected --out FILE");
  }
  const std::tm now = fmt::gmtime(std::time(nullptr));
  const std::string out =
      options.out.empty() ? fmt::format("cairn-report-{:%Y%m%dT%H%M%SZ}.txt", now) : options.out;
  // The questions take a while. A name that cannot be used is known before.
  if (out != "-") {
    if (const Status possible = CheckReportPath(out); !possible.ok()) return Fail(possible);
  }
  Collector collector(options);
  collector.Add("machine", Machine());
  if (options.cache.empty() && options.admins.empty()) {
    AddLaunched(options, &collector);
  }
  for (const std::string& address : SplitAddresses(options.cache)) {
    collector.AddNode("node at " + address, address);
  }
  for (const std::string& address : options.admins) {
    collector.AddAdmin("admin port at " + address, address);
  }
  for (const std::string& path : options.configs) {
    collector.Add("settings in " + path, ReadWhole(path));
  }
  for (const std::string& path : options.logs) collector.Add("log " + path, ReadTail(path));

  const std::vector<ReportPart> parts = collector.Take();
  const std::string text =
      ReportText(std::string("cairn ") + CAIRN_VERSION + " (" + CAIRN_REVISION + ")",
                 fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", now), parts);
  if (out == "-") {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return kExitOk;
  }
  if (const Status written = WriteReport(out, text); !written.ok()) return Fail(written);
  if (!options.json) {
    std::printf("%s\n", out.c_str());
    return kExitOk;
  }
  Json list = Json::array();
  for (const ReportPart& part : parts) {
    list.push_back(
        {{"name", part.title}, {"missing", part.text.ok() ? "" : Message(part.text.status())}});
  }
  std::printf("%s\n",
              Dump({{"file", out}, {"bytes", text.size()}, {"parts", std::move(list)}}).c_str());
  return kExitOk;
}

}  // namespace cairn::cli
