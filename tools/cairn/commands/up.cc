#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "common/config/config.h"
#include "common/metrics/admin_server.h"
#include "common/service/process_start.h"
#include "tools/cairn/cluster/grpc_nodes.h"
#include "tools/cairn/cluster/survey.h"
#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/flags.h"
#include "tools/cairn/commands/launch_directory.h"
#include "tools/cairn/commands/report_error.h"
#include "tools/cairn/generator/generator.h"
#include "tools/cairn/launch/ending.h"
#include "tools/cairn/launch/http_port.h"
#include "tools/cairn/launch/launcher.h"
#include "tools/cairn/launch/settings_check.h"
#include "tools/cairn/launch/view.h"
#include "tools/cairn/output/progress.h"
#include "tools/cairn/process/interrupt.h"
#include "tools/cairn/process/log_tail.h"
#include "tools/cairn/process/ports.h"
#include "tools/cairn/process/programs.h"

namespace cairn::cli {
namespace {

constexpr std::chrono::seconds kCall(2);
// For what has just started and has no requests.
constexpr std::chrono::seconds kEnd(30);

class Probes final : public LaunchProbes {
 public:
  Status Ready(const std::string& admin) override {
    return metrics::HttpGet(admin, "/readyz", kCall).status();
  }
  Status Whole(const std::vector<std::string>& nodes) override {
    CAIRN_ASSIGN_OR_RETURN(const Survey survey, TakeSurvey(nodes_.get(), nodes, /*stats=*/false));
    if (survey.differences.empty()) return OkStatus();
    return Errorf(StatusCode::kUnavailable, "{}", survey.differences.front());
  }
  Status HasCache(const std::string& worker) override {
    CAIRN_ASSIGN_OR_RETURN(const auto connection, ConnectWorker(worker));
    CAIRN_ASSIGN_OR_RETURN(const Generator::Info info, connection->GetInfo());
    if (info.cache_address.empty() || info.cache_connected) return OkStatus();
    return Errorf(StatusCode::kUnavailable, "it has no session with {} yet", info.cache_address);
  }

 private:
  const std::unique_ptr<ClusterNodes> nodes_ = NewClusterNodes({}, kCall);
};

Result<LaunchPlan> PlanOf(const UpOptions& options) {
  std::error_code error;
  const std::string model = std::filesystem::absolute(options.model, error);
  if (!std::filesystem::is_regular_file(model, error)) {
    return Errorf(StatusCode::kNotFound,
                  "no model at '{}'; `make demo` fetches it, or name a GGUF file with --model",
                  options.model);
  }
  for (const auto& [flag, size] : {std::pair("--ram", &options.ram), {"--disk", &options.disk}}) {
    if (size->empty()) continue;
    CAIRN_RETURN_IF_ERROR(Annotate(config::ParseBytes(*size).status(), flag));
  }
  if (options.prefill_workers > 0 && options.nodes == 0) {
    return InvalidArgument(
        "--prefill-workers: got {} with --nodes 0, expected a node through which prompts go",
        options.prefill_workers);
  }
  const bool http_is_a_setting = std::ranges::any_of(
      options.router_settings,
      [](const std::string& setting) { return setting.starts_with("http.listen="); });
  return LaunchPlan{.nodes = options.nodes,
                    .workers = options.workers,
                    .prefill_workers = options.prefill_workers,
                    .model = model,
                    .threads = options.threads,
                    .ram = options.ram,
                    .disk = options.disk,
                    // A setting wins over the flag.
                    .http = options.http.empty() && http_is_a_setting ? kAnyHttp : options.http,
                    .node_settings = options.node_settings,
                    .worker_settings = options.worker_settings,
                    .router_settings = options.router_settings};
}

// The state that an earlier `up` has left in the directory, if nothing of it runs any more.
Result<LaunchState> TakeOver(const LaunchDirectory& directory) {
  LaunchState state{.boot_id = BootId(), .made_directory = directory.made()};
  const auto before = directory.ReadState();
  if (before.status().code() == StatusCode::kNotFound) return state;
  if (!before.ok()) return before.status();
  if (const auto running = Running(*before); !running.empty()) {
    return Errorf(StatusCode::kAlreadyExists, "{} run in '{}' since an earlier `cairn up`:\n{}",
                  fmt::join(running, ", "), directory.path(),
                  LaunchText(*before, directory.path(), Terminal::Detect(stderr)));
  }
  Progress silent(/*silent=*/true);
  (void)EndAll(*before, std::chrono::milliseconds(0), silent);  // Removes their sockets.
  directory.Forget();
  state.made_directory = before->made_directory;
  return state;
}

// Whether the directory still holds what this process started.
bool StillOurs(const LaunchState& state, const std::string& path) {
  const auto there = ReadLaunchState(path);
  return there.ok() && *there == state;
}

int Stay(const LaunchState& state, const std::string& path, bool keep, Progress& progress) {
  std::fflush(stdout);
  WatchUntilInterrupted(state, [&](const LaunchedProcess& process) {
    std::fprintf(stderr, "cairn: %s has ended. The end of its log:\n%s\n", process.name.c_str(),
                 LogTail(LaunchLog(path, process.name)).c_str());
  });
  const auto directory = LaunchDirectory::OpenExisting(path);
  // `cairn down` works there, or has done so.
  if (!directory.ok() || !StillOurs(state, path)) return kExitOk;
  (void)EndAll(state, kEnd, progress);
  const Status removed = (*directory)->Remove(state.made_directory, keep);
  return removed.ok() ? kExitOk : Fail(removed);
}

void AddSettings(CLI::App& command, const char* flag, std::vector<std::string>& settings,
                 const char* help) {
  command.add_option(flag, settings, help)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check([](const std::string& text) {
        const size_t equals = text.find('=');
        return equals == text.npos || equals == 0 ? "expected KEY=VALUE" : std::string();
      });
}

}  // namespace

void AddUp(CLI::App& app, UpOptions& o) {
  CLI::App& c = *app.add_subcommand("up", "Starts nodes, workers and a router on this machine");
  CLI::Option* directory = c.add_option("--dir", o.directory, kLaunchDirectoryHelp);
  c.add_option("--nodes", o.nodes, "Cache nodes; more than one form a cluster")
      ->check(CLI::Range(0u, 64u))
      ->capture_default_str();
  c.add_option("--workers", o.workers, "Workers, dealt out to the nodes")
      ->check(CLI::Range(1u, 64u))
      ->capture_default_str();
  c.add_option("--prefill-workers", o.prefill_workers,
               "More workers, which compute prompts for those, dealt out to the nodes in the same "
               "way")
      ->check(CLI::Range(0u, 64u))
      ->capture_default_str();
  c.add_option("--model", o.model, "GGUF file of the workers")
      ->envname("CAIRN_MODEL")
      ->capture_default_str();
  c.add_option("--threads", o.threads,
               "Threads of each worker; 0: the machine's CPUs, divided among the workers")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  c.add_option("--ram", o.ram, "Memory of each node's host tier")->capture_default_str();
  c.add_option("--disk", o.disk, "Disk tier of each node, such as 4GiB, in the directory")
      ->needs(directory);
  AddSettings(c, "--node-set", o.node_settings,
              "KEY=VALUE: a setting of each node; may be given several times");
  AddSettings(c, "--worker-set", o.worker_settings,
              "KEY=VALUE: a setting of each worker; may be given several times");
  AddSettings(c, "--router-set", o.router_settings,
              "KEY=VALUE: a setting of the router; may be given several times");
  c.add_option("--http", o.http,
               "Where the router serves HTTP, HOST:PORT; port 0: a free one; default: "
               "127.0.0.1:8000, or a free port if that one is taken")
      ->check([](const std::string& text) {
        return text.empty() ? "expected HOST:PORT" : std::string();
      });
  c.add_option("--timeout", o.timeout_s,
               "Seconds until nodes, then workers, and then the router must serve")
      ->check(CLI::Range(1.0, 86400.0))
      ->capture_default_str();
  CLI::Option* foreground =
      c.add_flag("--foreground", o.foreground, "Stay, and end everything on Ctrl-C");
  c.add_flag("--keep", o.keep, "Keep then what the nodes have on disk, for the next `cairn up`")
      ->needs(foreground);
  AddJson(c, o.json, "Print one JSON object");
  c.footer(
      "Everything listens on loopback, on free ports (the router's HTTP at port 8000 if that is\n"
      "free), and goes on in the background until `cairn down`. If something does not serve, `up` "
      "shows\nthe end of its log and ends the rest.\n"
      "Examples:\n"
      "  cairn up --nodes 2 --workers 2\n"
      "  cairn up --dir /var/tmp/cairn --disk 4GiB --model m.gguf");
}

int RunUp(const UpOptions& options) {
  const auto failed = [](const Status& status) {
    return status.code() == StatusCode::kInvalidArgument ? FailUsage("up: " + Message(status))
                                                         : Fail(status);
  };
  const auto plan = PlanOf(options);
  if (!plan.ok()) return failed(plan.status());
  const auto path = LaunchDirectoryOf(options.directory);
  if (!path.ok()) return Fail(path.status());
  if (const Status settings = CheckSettings(*plan, *path + "/data"); !settings.ok()) {
    return failed(settings);
  }
  if (!plan->http.empty()) {
    // Before nodes and workers have started for nothing.
    if (const Status free = CheckGivenPort(plan->http, CheckFree); !free.ok()) return Fail(free);
  }
  auto directory = LaunchDirectory::Open(*path);
  if (!directory.ok()) return Fail(directory.status());
  auto state = TakeOver(**directory);
  if (!state.ok()) return Fail(state.status());
  state->model = plan->model;
  const bool had_data = (*directory)->HasData();

  CatchInterrupts();
  Progress progress(/*silent=*/false);
  Probes probes;
  Launcher launcher(*plan, **directory, probes, progress,
                    std::chrono::milliseconds(static_cast<int64_t>(options.timeout_s * 1000)),
                    *std::move(state));
  const Status serves = launcher.Run();
  progress.Clear();
  if (!serves.ok()) {
    (void)EndAll(launcher.state(), kEnd, progress);
    (void)(*directory)->Remove(launcher.state().made_directory, had_data);
    const int code = Fail(serves);
    return Interrupted() ? kExitInterrupted : code;
  }
  const std::string port = plan->http.empty() ? PortNote(launcher.state()) : "";
  if (options.json) {
    std::fprintf(stderr, "%s", port.c_str());
    std::printf("%s\n", Dump(LaunchJson(launcher.state(), *path)).c_str());
  } else {
    std::printf("%s%s%s", LaunchText(launcher.state(), *path, Terminal::Detect(stdout)).c_str(),
                port.c_str(),
                NextSteps(launcher.state(), options.directory, SiblingProgram("cairn")).c_str());
  }
  if (const Status written = service::FlushOutput(); !written.ok()) {
    // Callers that read where the processes listen have not got it.
    return Fail(Errorf(written.code(), "{}; the processes run, `cairn down --dir {}` ends them",
                       Message(written), *path));
  }
  if (!options.foreground) return kExitOk;
  directory->reset();  // `cairn down` may come in.
  return Stay(launcher.state(), *path, options.keep, progress);
}

}  // namespace cairn::cli
