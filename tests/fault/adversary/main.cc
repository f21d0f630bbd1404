// cairn_adversary: real servers between hostile clients and honest ones.
//
//   cairn_adversary                            all recipes, in seeded mixtures
//   cairn_adversary --only squatting           one recipe, which is the test of its finding
//   cairn_adversary --stage cluster            routers, workers and three nodes instead of a node
//
// Prints the seed, the progress, a summary per recipe, and everything that is wrong. Exit code 1:
// something is.

#include <chrono>
#include <cstdlib>
#include <iostream>

#include "common/config/config.h"
#include "common/log/log.h"
#include "tests/fault/adversary/cost.h"
#include "tests/fault/adversary/runner.h"

namespace cairn::fault {
namespace {

struct Options {
  uint64_t seed = 0;
  double seconds = 75;
  std::string only;
  std::string skip;
  bool json = false;
  bool list = false;
  bool cost = false;
  std::string stage = "node";
  std::string port;
};

uint64_t SeedOfTheDay() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::days>(now).count());
}

// Whether `name` is among those that commas divide.
bool IsIn(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    const size_t end = std::min(names.find(','), names.size());
    if (names.substr(0, end) == name) return true;
    names.remove_prefix(std::min(names.size(), end + 1));
  }
  return false;
}

// Three rounds of two seconds at each port, and as many without hostile clients.
int MeasureCost(Stage* stage, const Options& options, const Runner::Options& run) {
  const Result<CostReport> report = MeasureCosts(
      stage,
      {.seed = run.seed, .recipes = run.recipes, .port = options.port, .quiet = options.json});
  if (!report.ok()) {
    std::cerr << ToString(report.status()) << "\n";
    return 2;
  }
  std::cout << (options.json ? report->Json() : report->Text()) << std::endl;
  return 0;
}

int Run(const Options& options) {
  log::Configure({.level = log::Level::kError});  // That nodes go away is what happens here.
  Runner::Options run{.seed = options.seed != 0 ? options.seed : SeedOfTheDay(),
                      .seconds = options.seconds,
                      .recipes = {},
                      .quiet = options.json};
  const bool cluster = options.stage == "cluster";
  for (const Recipe* recipe : cluster ? ClusterRecipes() : NodeRecipes()) {
    if (options.list) std::cout << fmt::format("{:22} {}\n", recipe->name, recipe->what);
    const bool chosen = options.only.empty() || IsIn(options.only, recipe->name);
    if (chosen && !IsIn(options.skip, recipe->name)) run.recipes.push_back(recipe);
  }
  if (options.list) return 0;
  if (run.recipes.empty()) {
    std::cerr << "only: got '" << options.only << "', expected names that --list prints\n";
    return 2;
  }
  Result<std::unique_ptr<Stage>> stage = cluster ? StartClusterStage() : StartNodeStage();
  if (!stage.ok()) {
    std::cerr << ToString(stage.status()) << "\n";
    return 2;
  }
  if (options.cost) return MeasureCost(stage->get(), options, run);
  if (!options.json) std::cout << "seed " << run.seed << std::endl;
  const Report report = Runner(*std::move(stage), run).Run();
  std::cout << (options.json ? report.Json() : report.Text()) << std::endl;
  return report.findings.empty() ? 0 : 1;
}

}  // namespace
}  // namespace cairn::fault

int main(int argc, char** argv) {
  using namespace cairn;
  fault::Options options;
  if (const char* seconds = std::getenv("CAIRN_ADVERSARY_SECONDS"); seconds != nullptr) {
    options.seconds = std::strtod(seconds, nullptr);
  }
  config::Schema schema("cairn_adversary",
                        "Hostile clients and honest ones against real servers, with invariants.",
                        "cairn_adversary --seconds 60 --only squatting");
  schema.Integer("seed", &options.seed, "Of all random choices. 0: the number of today.");
  schema.Real("seconds", &options.seconds, "How long it runs. Each recipe has its turn once.",
              {.min = 1, .unit = "seconds"});
  schema.Text("only", &options.only, "Names of recipes, divided by commas. Empty: all.");
  schema.Text("skip", &options.skip, "Names of recipes that do not run.");
  schema.Switch("json", &options.json, "One line of JSON instead of text.");
  schema.Switch("cost", &options.cost,
                "Measures what each recipe costs an honest client, against a second honest one.");
  schema.Text("stage", &options.stage,
              "node: a node alone. cluster: two routers, two workers and three nodes; it runs in "
              "the root of the tree, where the small model is.",
              {.choices = {"node", "cluster"}});
  schema.Text("port", &options.port, "With cost: only at this port. Empty: at all.");
  schema.Switch("list", &options.list, "Prints the recipes and ends.");
  const auto line = config::Load(schema, {argv + 1, argv + argc});
  if (!line.ok()) {
    std::cerr << ToString(line.status()) << "\n";
    return 2;
  }
  if (line->exit) {
    std::cout << line->output;
    return 0;
  }
  return fault::Run(options);
}
