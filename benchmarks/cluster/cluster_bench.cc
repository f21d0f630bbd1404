// cluster_bench [--only trace,remote,match,bandwidth,herd] [--json]
//
// Measures a cluster of real nodes in a network of its own (tests/support/network_lab.h). Needs the
// right to make network namespaces.

#include <iostream>

#include "benchmarks/cluster/scenarios.h"
#include "common/config/config.h"
#include "common/log/log.h"
#include "tests/support/network_lab.h"

namespace cairn::bench {
namespace {

struct Command {
  Options options;
  std::string only = "trace,remote,match,bandwidth,herd";
  bool json = false;
  // The calls of GetPrompt.
  std::string get, model;
  uint64_t prompt = 0;
  uint64_t blocks = 0;
};

struct Scenario {
  const char* name;
  Result<Rows> (*run)(const Options&);
};
constexpr Scenario kScenarios[] = {{"trace", MeasureTrace},
                                   {"remote", MeasureRemoteHit},
                                   {"match", MeasureMatch},
                                   {"bandwidth", MeasureBandwidth},
                                   {"herd", MeasureHerd}};

void Print(const Rows& rows, bool json) {
  for (const Row& row : rows) {
    std::vector<double> sorted = row.samples;
    std::sort(sorted.begin(), sorted.end());
    const double median = sorted.empty() ? 0 : sorted[sorted.size() / 2];
    if (json) {
      std::cout << fmt::format(R"({{"name":"{}","median":{:.6g},"unit":"{}","samples":[{:.6g}],)"
                               R"("yardstick":"{}"}})",
                               row.name, median, row.unit, fmt::join(row.samples, ","),
                               row.yardstick)
                << std::endl;
    } else {
      std::cout << fmt::format("{:28} {:10.4g} {:14} {}\n", row.name, median, row.unit,
                               row.yardstick)
                << std::flush;
    }
  }
}

int Run(const Command& command) {
  log::Configure({.level = log::Level::kError});
  if (!command.get.empty()) {
    const Status got = GetPrompt(command.get, command.model, command.prompt, command.blocks);
    if (!got.ok()) std::cerr << ToString(got) << "\n";
    return got.ok() ? 0 : 1;
  }
  if (const Status can = testing::NetworkLab::Available(); !can.ok()) {
    std::cerr << ToString(can) << "\n";
    return 3;
  }
  int code = 0;
  for (const Scenario& scenario : kScenarios) {
    if (command.only.find(scenario.name) == std::string::npos) continue;
    const Result<Rows> rows = scenario.run(command.options);
    if (rows.ok()) {
      Print(*rows, command.json);
    } else {
      std::cerr << scenario.name << ": " << ToString(rows.status()) << "\n";
      code = 1;
    }
  }
  return code;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) {
  using namespace cairn;
  bench::Command command;
  config::Schema schema("cluster_bench", "Measures a cluster of nodes in a network of its own.",
                        "cluster_bench --only remote");
  schema.Text("only", &command.only, "Names of scenarios, divided by commas.");
  schema.Switch("json", &command.json, "One line of JSON for each row.");
  schema.Text("trace", &command.options.trace, "File of requests.");
  schema.Integer("requests", &command.options.requests, "Requests of the trace.", {.min = 1});
  schema.Integer("rounds", &command.options.rounds, "Samples of a row.", {.min = 1});
  schema.Text("get", &command.get, "Internal: brings a prompt from the node at this address.");
  schema.Text("model", &command.model, "Internal.");
  schema.Integer("prompt", &command.prompt, "Internal.");
  schema.Integer("blocks", &command.blocks, "Internal.");
  const auto line = config::Load(schema, {argv + 1, argv + argc});
  if (!line.ok()) {
    std::cerr << ToString(line.status()) << "\n";
    return 2;
  }
  if (line->exit) {
    std::cout << line->output;
    return 0;
  }
  return bench::Run(command);
}
