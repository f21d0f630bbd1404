// simulated_engines [--engines N] [--compression X] [--order fifo|least-work]
//                   [--answers simulated|at_once|held] [--stream-interval TOKENS]
//
// Engines with OpenAI's API, each on a port of its own (README.md). Prints `ready URL URL ...`, and
// ends when its standard input does.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/compare/router/engine_api.h"
#include "benchmarks/compare/router/simulation.h"
#include "common/http/server.h"

namespace cairn::compare {
namespace {

struct Settings {
  Simulation::Options simulation;
  Answers answers = Answers::kSimulated;
};

bool Set(const std::string& name, const std::string& value, Settings* settings) {
  Simulation::Options& simulation = settings->simulation;
  const double number = std::atof(value.c_str());
  if (name == "--order" && (value == "fifo" || value == "least-work")) {
    simulation.worker.first_in_first_out = value == "fifo";
    return true;
  }
  if (name == "--answers") {
    if (value == "simulated") settings->answers = Answers::kSimulated;
    if (value == "at_once") settings->answers = Answers::kAtOnce;
    if (value == "held") settings->answers = Answers::kHeld;
    return value == "simulated" || value == "at_once" || value == "held";
  }
  if (number <= 0) return false;
  if (name == "--engines") simulation.engines = static_cast<size_t>(number);
  if (name == "--compression") simulation.compression = number;
  if (name == "--stream-interval") simulation.stream_interval = static_cast<int64_t>(number);
  return name == "--engines" || name == "--compression" || name == "--stream-interval";
}

std::optional<Settings> Parse(int argc, char** argv) {
  Settings settings;
  settings.simulation.worker.first_in_first_out = true;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc || !Set(argv[i], argv[i + 1], &settings)) return std::nullopt;
  }
  return settings;
}

int Main(int argc, char** argv) {
  const std::optional<Settings> settings = Parse(argc, argv);
  if (!settings) {
    std::fprintf(stderr,
                 "usage: simulated_engines [--engines N] [--compression X] "
                 "[--order fifo|least-work] [--answers simulated|at_once|held] "
                 "[--stream-interval TOKENS]\n");
    return 2;
  }
  const rlimit files{16384, 16384};
  setrlimit(RLIMIT_NOFILE, &files);
  Simulation simulation(settings->simulation);
  std::vector<std::unique_ptr<EngineApi>> apis;
  std::vector<std::unique_ptr<http::Server>> servers;  // Go before what they call.
  std::vector<std::string> urls;
  for (size_t i = 0; i < settings->simulation.engines; ++i) {
    apis.push_back(std::make_unique<EngineApi>(settings->answers, &simulation, i));
    auto server = http::Server::Start(
        {.listen = "127.0.0.1:0", .field = "listen", .tls = {}, .threads = 1}, apis.back().get());
    if (!server.ok()) {
      std::fprintf(stderr, "simulated_engines: %s\n", ToString(server.status()).c_str());
      return 1;
    }
    urls.push_back("http://" + (*server)->address());
    servers.push_back(std::move(*server));
  }
  fmt::print("ready {}\n", fmt::join(urls, " "));
  std::fflush(stdout);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}

}  // namespace
}  // namespace cairn::compare

int main(int argc, char** argv) { return cairn::compare::Main(argc, argv); }
