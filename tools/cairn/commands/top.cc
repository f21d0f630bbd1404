#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>

#include "clients/cpp/src/core/node_list.h"
#include "tools/cairn/cluster/grpc_nodes.h"
#include "tools/cairn/commands/addresses.h"
#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/flags.h"
#include "tools/cairn/commands/launch_directory.h"
#include "tools/cairn/commands/report_error.h"
#include "tools/cairn/launch/ending.h"
#include "tools/cairn/launch/lookup.h"
#include "tools/cairn/process/interrupt.h"
#include "tools/cairn/top/sampler.h"
#include "tools/cairn/top/view.h"

namespace cairn::cli {
namespace {

// One that hangs makes no look late; one that is only slow is no one that is away.
constexpr double kMostWait = 10;

struct Targets {
  std::map<std::string, std::string> nodes;  // Names by address.
  std::vector<TopWorker> workers;
  TopRouter router = {};
};

Status AddWorker(const std::string& name, const std::string& address, const TlsFlags& tls,
                 Targets* targets) {
  CAIRN_ASSIGN_OR_RETURN(auto source, ConnectWorkerLoad(address, tls));
  targets->workers.push_back({name, address, std::move(source)});
  return OkStatus();
}

Status AddRouter(const std::string& address, const TlsFlags& tls, Targets* targets) {
  CAIRN_ASSIGN_OR_RETURN(targets->router.source, ConnectRouterInfo(address, tls));
  targets->router.address = address;
  return OkStatus();
}

Result<Targets> TargetsOf(const TopOptions& options) {
  Targets targets;
  for (const std::string& address : SplitAddresses(options.cache)) {
    // It would look like a node that is away.
    CAIRN_RETURN_IF_ERROR(client::CheckAddress(address));
    targets.nodes[address] = "";
  }
  for (const std::string& address : options.workers) {
    CAIRN_RETURN_IF_ERROR(InFlags(AddWorker(address, address, options.tls, &targets), "--worker"));
  }
  if (!options.router.empty()) {
    CAIRN_RETURN_IF_ERROR(InFlags(AddRouter(options.router, options.tls, &targets), "--router"));
  }
  if (!options.cache.empty() || !options.workers.empty() || !options.router.empty()) {
    return targets;
  }
  const auto directory = options.directory.empty() ? DefaultLaunchDirectory(/*make=*/false)
                                                   : LaunchDirectoryOf(options.directory);
  const auto read = directory.ok() ? ReadLaunchState(*directory) : directory.status();
  if (options.directory.empty() && (!read.ok() || Running(*read).empty())) {
    // A node that was started by hand, or the error that says what there is not.
    CAIRN_ASSIGN_OR_RETURN(const DefaultTarget node, FindDefault(Seek::kNode, ThisMachine()));
    targets.nodes[node.address] = "";
    return targets;
  }
  CAIRN_ASSIGN_OR_RETURN(const LaunchState state, read);
  for (const LaunchedProcess& process : state.processes) {
    if (process.grpc.empty()) continue;  // It has not served yet.
    if (process.role == Role::kNode) targets.nodes[process.grpc] = process.name;
    if (process.role == Role::kRouter) {
      CAIRN_RETURN_IF_ERROR(AddRouter(process.grpc, options.tls, &targets));
    }
    if (process.role == Role::kWorker) {
      CAIRN_RETURN_IF_ERROR(AddWorker(process.name, process.grpc, options.tls, &targets));
    }
  }
  return targets;
}

// The terminal's other screen, so that what was there comes back.
class Screen {
 public:
  explicit Screen(bool used) : used_(used) {
    if (used_) std::printf("\x1b[?1049h\x1b[?25l");
  }
  ~Screen() {
    if (used_) std::printf("\x1b[?25h\x1b[?1049l");
    std::fflush(stdout);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  bool used() const { return used_; }

 private:
  const bool used_;
};

void Print(const Screen& screen, const Terminal& terminal, bool json, const Snapshot* before,
           const Snapshot& now) {
  if (json) {
    std::printf("%s\n", Dump(TopJson(before, now)).c_str());
  } else if (screen.used()) {
    std::printf("\x1b[H\x1b[J%s", TopText(before, now, terminal).c_str());
  } else {
    const std::string header = before == nullptr ? TopHeader(now) : "";
    std::printf("%s%s", header.c_str(), TopLines(before, now).c_str());
  }
  std::fflush(stdout);
}

}  // namespace

void AddTop(CLI::App& app, TopOptions& o) {
  CLI::App& c =
      *app.add_subcommand("top", "Shows nodes, workers and router at work, again and again");
  CLI::Option* directory = c.add_option("--dir", o.directory, kLaunchDirectoryHelp);
  c.add_option("--cache", o.cache,
               "Instead of what `cairn up` started: addresses of nodes, HOST:PORT with commas; "
               "some members of a cluster are enough")
      ->excludes(directory);
  c.add_option("--worker", o.workers, "Address of a worker; may be given several times")
      ->delimiter(',')
      ->excludes(directory);
  c.add_option("--router", o.router, "Address of a router's gRPC port")->excludes(directory);
  c.add_option("--interval", o.interval_s, "Seconds between two looks")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  c.add_option("--count", o.count, "End after this many looks; 0: on Ctrl-C")
      ->capture_default_str();
  AddTlsFlags(c, o.tls);
  AddJson(c, o.json, "Print one JSON object for each look");
  c.footer(
      "On a terminal it redraws its tables; elsewhere it prints the columns with their units "
      "once,\n"
      "and then one row for each process and look. Rates are those since the look before.\n"
      "Examples:\n"
      "  cairn top\n"
      "  cairn top --cache 10.0.0.1:7400 --worker 10.0.0.1:7500,10.0.0.2:7500 --count 2 --json");
}

int RunTop(const TopOptions& options) {
  auto targets = TargetsOf(options);
  if (!targets.ok()) return Fail(targets.status());
  const auto timeout = std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::min(options.interval_s, kMostWait)));
  Sampler sampler(NewClusterNodes(options.tls, timeout), std::move(targets->nodes),
                  std::move(targets->workers), std::move(targets->router), timeout);
  CatchInterrupts();
  const Terminal terminal = Terminal::Detect(stdout);
  const Screen screen(terminal.tty && !options.json);
  const std::chrono::milliseconds interval(static_cast<int64_t>(options.interval_s * 1000));
  std::optional<Snapshot> before;
  for (uint32_t n = 1;; ++n) {
    const auto next = std::chrono::steady_clock::now() + interval;
    Snapshot now = sampler.Take();
    Print(screen, terminal, options.json, before ? &*before : nullptr, now);
    if (options.count != 0 && n >= options.count) return kExitOk;
    before = std::move(now);
    const auto pause = std::chrono::duration_cast<std::chrono::milliseconds>(
        next - std::chrono::steady_clock::now());
    if (!PauseUnlessInterrupted(pause)) return kExitOk;
  }
}

}  // namespace cairn::cli
