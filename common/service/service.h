#pragma once
// A process that serves calls. All our servers share the same start, probes, signals and end.
//
//   settings -> log -> admin port -> Service::Start -> "ready" -> SIGTERM -> Service::Drain -> end
//                      /livez         /readyz: 503 with the reason, 200     503: draining
//
// A program consists of its settings and of a Service that is made from them:
//
//   int main(int argc, char** argv) {
//     MyConfig config;
//     return cairn::service::Main(
//         {.name = "cairn-my", .summary = "Serves my protocol.", .settings = &config.process,
//          .add_settings = [&](auto* schema) { MyConfig::Register(&config, schema); },
//          .make = [&](auto* registry, auto*) { return MakeMyService(config, registry); }},
//         {argv + 1, argv + argc});
//   }

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/config/config.h"
#include "common/metrics/metrics.h"
#include "common/net/address.h"
#include "common/service/process_start.h"
#include "common/tracing/tracing.h"

namespace cairn::service {

// The settings that every process has. The program registers them among its own settings.
struct Settings {
  std::string admin_listen;
  std::string log_level = "info";
  std::string log_format = "text";
  bool json = false;  // The ready line as JSON.
  tracing::Settings tracing = {};

  // log.level and log.format; --json.
  static void RegisterLog(Settings* settings, config::Schema* schema);
  static void RegisterJson(Settings* settings, config::Schema* schema);
  // tracing.*.
  static void RegisterTracing(Settings* settings, config::Schema* schema);
};

// admin.listen, which has to be host:port. INVALID_ARGUMENT names it.
Result<net::ListenAddress> ParseAdminListen(const Settings& settings);

// One thread makes it, calls Start, Drain and address, and destroys it. At the same time another
// thread calls Tick, and scrapes call the collectors that the service added to the registry.
class Service {
 public:
  virtual ~Service() = default;  // Stops everything that Drain did not end, without waiting.
  // Returns when the service accepts requests.
  virtual Status Start() = 0;
  // The address of the data port, with the port that was picked. REQUIRES: Start was OK.
  virtual std::string address() const = 0;
  // The same of its HTTP port. Empty: it has none.
  virtual std::string http_address() const { return ""; }
  // Called every 100 ms from the moment when Start was OK until after Drain.
  virtual void Tick() {}
  // The thing that it waits for before it can be of use; /readyz answers 503 with it. Empty:
  // nothing. Called after Tick, on the same thread.
  virtual std::string Waiting() const { return ""; }
  // The configured parts that it has to do without; /readyz answers 200 with them. Empty: nothing.
  // Called after Tick, on the same thread.
  virtual std::string Degraded() const { return ""; }
  // How long the poller of calls that has worked longest on one of them has done so; 0: all wait.
  // Probes of liveness ask from another thread, at any time until the destructor begins.
  virtual Duration BusyFor() const { return Duration(0); }
  // Refuses new calls, lets running calls end, and closes the data port. An error means that
  // something was lost. Called once, after Start.
  virtual Status Drain() = 0;
};

struct Program {
  std::string name;                    // The name of the executable.
  std::string summary;                 // Opens --help.
  std::string example;                 // One command line that works.
  std::string starting = "starting";   // The answer of /readyz until Start returns.
  int arenas = kArenas;                // The number of arenas of the heap: process_start.h.
  const Settings* settings = nullptr;  // Read after the settings were loaded.
  std::function<void(config::Schema*)> add_settings;
  // `registry` and `tracer` outlive the service; `tracer` is nullptr if nobody wants spans. Called
  // after the settings were loaded.
  std::function<std::unique_ptr<Service>(metrics::Registry* registry, tracing::Tracer* tracer)>
      make;
  // About how many threads its settings ask for, in addition to those that every process has. The
  // start is refused if the system does not give as many. Unset: none.
  std::function<size_t()> threads = {};
};

// main: takes over the process (process_start.h), and then is Run.
int Main(const Program& program, const std::vector<std::string>& args);

// Everything of main that can be done several times in a process. `args` does not contain argv[0].
// With `health` as the only word it asks the running process on the admin port whether it is ready,
// for container probes. Returns the exit code. 0: an orderly end. 2: settings that cannot be used,
// also when only Start can find that out (INVALID_ARGUMENT). 1: any other error. Errors go to
// stderr. Call it once, before any thread exists.
int Run(const Program& program, const std::vector<std::string>& args);

}  // namespace cairn::service
