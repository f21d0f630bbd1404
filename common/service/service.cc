#include "common/service/service.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <thread>
#include <utility>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"
#include "common/concurrency/ticker.h"
#include "common/lifecycle/lifecycle.h"
#include "common/log/log.h"
#include "common/metrics/admin_server.h"
#include "common/service/process_start.h"

namespace cairn::service {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(100);
// A process whose ticker has been silent for longer is not alive.
constexpr Duration kMaxSilence = std::chrono::seconds(10);
// How long the end waits for a reader of stderr.
constexpr Duration kLastLines = std::chrono::milliseconds(500);

void PrintReady(const Settings& settings, const Service& service, const std::string& admin) {
  const std::string http = service.http_address();
  std::string line;
  if (settings.json) {
    line = fmt::format(R"({{"ready": true, "grpc": "{}", "admin": "{}")", service.address(), admin);
    if (!http.empty()) line += fmt::format(R"(, "http": "{}")", http);
    line += "}";
  } else {
    line = fmt::format("ready grpc={} admin={}", service.address(), admin);
    if (!http.empty()) line += " http=" + http;
  }
  std::puts(line.c_str());
  // The process serves all the same: its callers know its address from elsewhere.
  if (const Status written = FlushOutput(); !written.ok()) {
    log::Warn("ready_line_not_written", {{"reason", Message(written)}});
  }
}

Status Health(const Settings& settings) {
  CAIRN_ASSIGN_OR_RETURN(
      const std::string answer,
      metrics::HttpGet(settings.admin_listen, "/readyz", std::chrono::seconds(2)));
  std::fputs(answer.c_str(), stdout);
  return FlushOutput();
}

// The threads of every process: gRPC's, those of the log, the admin port, the ticker and the
// signals, and a poller of calls for every two processors.
size_t CommonThreads() {
  constexpr size_t kFixed = 16;
  return kFixed + 2 * std::min<size_t>(std::max(1u, std::thread::hardware_concurrency()), 16);
}

// A counter for each value of one label.
void Count(const std::string& name, const std::string& help, const std::string& label,
           std::initializer_list<std::pair<const char*, uint64_t>> counts, metrics::Sink* sink) {
  for (const auto& [value, count] : counts) {
    sink->Counter(name, help, {{label, value}}, metrics::Number(count));
  }
}

void ExportLog(metrics::Registry* registry) {
  registry->AddCollector([](metrics::Sink& sink) {
    const log::Losses lost = log::GetLosses();
    Count(
        "cairn_log_lost_lines_total",
        "Lines of the log that were not written. full: stderr was not read. rate: the event wrote "
        "too many.",
        "reason", {{"full", lost.dropped}, {"rate", lost.left_out}}, &sink);
  });
}

// nullptr: nobody wants spans.
Result<std::unique_ptr<tracing::Tracing>> StartTracing(const Program& program) {
  const tracing::Settings& settings = program.settings->tracing;
  if (settings.endpoint.empty()) return std::unique_ptr<tracing::Tracing>();
  return tracing::Tracing::Start(settings,
                                 {.service = program.name,
                                  .instance = fmt::format("{}/{}", MachineName(), getpid()),
                                  .version = std::string(config::Version())});
}

void ExportTracing(const tracing::Tracing* tracing, metrics::Registry* registry) {
  registry->AddCollector([tracing](metrics::Sink& sink) {
    const tracing::Exporter::Stats stats =
        tracing == nullptr ? tracing::Exporter::Stats() : tracing->GetStats();
    Count("cairn_trace_spans_total",
          "Spans, by what became of them. dropped: too many waited. failed: the collector did not "
          "take them.",
          "result", {{"sent", stats.sent}, {"dropped", stats.dropped}, {"failed", stats.failed}},
          &sink);
  });
}

// `changed`: the settings that are not the defaults.
Status Serve(const Program& program, const std::string& changed, ShutdownSignals& signals) {
  const Settings& settings = *program.settings;
  CAIRN_ASSIGN_OR_RETURN(const log::Level level, log::ParseLevel(settings.log_level));
  CAIRN_ASSIGN_OR_RETURN(const log::Format format, log::ParseFormat(settings.log_format));
  log::Configure({.level = level, .format = format});
  // Whoever reads a log, or a report that has it, asks this first.
  log::Info("starting", {{"program", program.name},
                         {"version", std::string(config::Version())},
                         {"revision", std::string(config::Revision())},
                         {"settings", changed}});

  // Whatever way this function ends, the ticker goes first and the service after the admin port,
  // since both call it.
  metrics::Registry registry;
  metrics::Health health(&SteadyClock::Get(), kMaxSilence);
  health.SetState(metrics::NodeState::kStarting, program.starting);
  health.Export(&registry);
  ExportLog(&registry);
  // Ends after the service, which uses it, and after the admin port, which scrapes it.
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<tracing::Tracing> tracing, StartTracing(program));
  ExportTracing(tracing.get(), &registry);
  std::unique_ptr<Service> service =
      program.make(&registry, tracing == nullptr ? nullptr : tracing->tracer());
  health.Watch("a poller of calls", [&service] { return service->BusyFor(); });
  registry.AddCollector([&service](metrics::Sink& sink) {
    sink.Gauge("cairn_rpc_poller_busy_seconds",
               "How long the poller of calls that has worked longest on one of them has done so.",
               {}, Seconds(service->BusyFor()));
  });
  // Probes answer while the service starts.
  CAIRN_ASSIGN_OR_RETURN(
      std::unique_ptr<metrics::AdminServer> admin,
      metrics::AdminServer::Start({.listen = settings.admin_listen}, &registry, &health));
  Mutex mu;  // Orders the states that are set.
  bool serving = false;
  const auto set_ready = [&] {
    const std::string waiting = service->Waiting();
    if (waiting.empty()) {
      health.SetState(metrics::NodeState::kReady, service->Degraded());
    } else {
      health.SetState(metrics::NodeState::kStarting, waiting);
    }
  };
  std::atomic<bool> started{false};
  auto ticker = std::make_unique<Ticker>(kTick, [&] {
    if (started.load(std::memory_order_acquire)) service->Tick();
    {
      MutexLock lock(mu);
      if (serving) set_ready();
    }
    health.Beat();
  });
  CAIRN_RETURN_IF_ERROR(service->Start());
  {
    MutexLock lock(mu);
    serving = true;
    set_ready();
  }
  started.store(true, std::memory_order_release);
  PrintReady(settings, *service, admin->address());

  const int signal_number = signals.Wait();
  log::Info("draining", {{"signal", log::Num(signal_number)}});
  {
    MutexLock lock(mu);
    serving = false;
    health.SetState(metrics::NodeState::kDraining, "draining");
  }
  const Status drained = service->Drain();
  ticker.reset();
  admin.reset();
  service.reset();
  log::Info("stopped", {{"status", drained.ok() ? "OK" : ToString(drained)}});
  log::Flush(kLastLines);
  return drained;
}

}  // namespace

void Settings::RegisterLog(Settings* settings, config::Schema* schema) {
  schema->Text("log.level", &settings->log_level, "The lowest level that is logged on stderr.",
               {.choices = {"debug", "info", "warn", "error"}});
  schema->Text("log.format", &settings->log_format, "text, or json: one object per line.",
               {.choices = {"text", "json"}});
}

void Settings::RegisterJson(Settings* settings, config::Schema* schema) {
  schema->Switch("json", &settings->json, "Print the ready line as JSON.");
}

void Settings::RegisterTracing(Settings* settings, config::Schema* schema) {
  tracing::Settings* const tracing = &settings->tracing;
  schema->Text(
      "tracing.endpoint", &tracing->endpoint,
      "Collector of traces: OTLP over HTTP, as JSON. http://HOST:4318, to which /v1/traces "
      "is added, or a whole URL. Without a port: 80, or 443 of https. Empty: no traces.");
  schema->Real(
      "tracing.sample", &tracing->sample,
      "Share of the requests whose callers say nothing of traces that gets one. A caller's "
      "traceparent decides by itself.",
      {.max = 1});
  schema->Text("tracing.ca", &tracing->ca,
               "PEM file with the authorities that sign the certificate of an https collector. "
               "Empty: those of the system.");
  schema->Text("tracing.headers", &tracing->headers,
               "File with headers of each call to the collector, a line NAME: VALUE each, such as "
               "its API key. Read at the start. Empty: none.");
  schema->Check([tracing] {
    if (tracing->endpoint.empty()) return OkStatus();
    CAIRN_RETURN_IF_ERROR(tracing::ParseCollector(tracing->endpoint, "tracing.endpoint").status());
    return tracing::ReadHeaders(tracing->headers, "tracing.headers").status();
  });
}

Result<net::ListenAddress> ParseAdminListen(const Settings& settings) {
  constexpr std::string_view kExpected = "host:port such as 127.0.0.1:7401";
  CAIRN_ASSIGN_OR_RETURN(net::ListenAddress admin,
                         net::ParseListenAddress(settings.admin_listen, "admin.listen", kExpected));
  if (admin.is_unix) {
    return InvalidArgument("admin.listen: got '{}', expected {}", settings.admin_listen, kExpected);
  }
  return admin;
}

int Main(const Program& program, const std::vector<std::string>& args) {
  InitProcess(program.name, program.arenas);
  CloseInherited(args);
  return Run(program, args);
}

int Run(const Program& program, const std::vector<std::string>& args) {
  ShutdownSignals signals;
  const auto fail = [&](const Status& status, int code) {
    const std::string text = Message(status);
    std::fprintf(stderr, "%s: %s%s\n", program.name.c_str(), text.c_str(),
                 AdviceFor(text, ReadLimits()).c_str());
    return code;
  };
  config::Schema schema(program.name, program.summary, program.example);
  program.add_settings(&schema);
  const Result<config::CommandLine> line = config::Load(schema, args);
  if (!line.ok()) return fail(line.status(), 2);
  for (const std::string& warning : line->warnings) {
    std::fprintf(stderr, "%s: warning: %s\n", program.name.c_str(), warning.c_str());
  }
  const bool health = line->words == std::vector<std::string>{"health"};
  // A mistyped value of a boolean is such a word, so --check-config has to refuse it, too.
  if (!health && !line->words.empty()) {
    return fail(
        InvalidArgument("unknown command '{}', expected none, or 'health'", line->words.front()),
        2);
  }
  if (line->exit) {
    std::fputs(line->output.c_str(), stdout);
    const Status written = FlushOutput();
    return written.ok() ? 0 : fail(written, 1);
  }
  if (health) {
    const Status ready = Health(*program.settings);
    return ready.ok() ? 0 : fail(ready, 1);
  }
  const size_t threads = CommonThreads() + (program.threads ? program.threads() : 0);
  if (const Status enough = CheckThreads(threads); !enough.ok()) return fail(enough, 1);
  const Status status = Serve(program, schema.PrintChanged(), signals);
  if (status.ok()) return 0;
  return fail(status, status.code() == StatusCode::kInvalidArgument ? 2 : 1);
}

}  // namespace cairn::service
