#include "tools/cairn/launch/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace cairn::cli {
namespace {

using testing::Contains;
using testing::Not;

// The value behind a flag; "" without it.
std::string After(const std::vector<std::string>& argv, const std::string& flag) {
  const auto it = std::find(argv.begin(), argv.end(), flag);
  return it == argv.end() || it + 1 == argv.end() ? "" : *(it + 1);
}

const std::vector<std::string> kNodes = {"127.0.0.1:1", "127.0.0.1:2"};

TEST(LaunchPlanTest, OneNodeIsNoCluster) {
  const LaunchPlan plan{.nodes = 1, .ram = "64MiB"};
  const auto argv = NodeArguments(plan, 0, {"127.0.0.1:1"}, "/d");
  EXPECT_EQ(After(argv, "--listen"), "127.0.0.1:1");
  EXPECT_EQ(After(argv, "--host.capacity"), "64MiB");
  EXPECT_THAT(argv, Not(Contains("--cluster.discovery")));
  EXPECT_THAT(argv, Not(Contains("--disk.path")));
}

TEST(LaunchPlanTest, NodesKnowEachOther) {
  const LaunchPlan plan{.nodes = 2, .ram = "64MiB", .disk = "1GiB"};
  const auto argv = NodeArguments(plan, 1, kNodes, "/d");
  EXPECT_EQ(After(argv, "--node.id"), "node-2");
  EXPECT_EQ(After(argv, "--cluster.members"), "127.0.0.1:1,127.0.0.1:2");
  EXPECT_EQ(After(argv, "--cluster.advertise"), "127.0.0.1:2");
  EXPECT_EQ(After(argv, "--disk.path"), "/d");
  EXPECT_EQ(After(argv, "--disk.capacity"), "1GiB");
}

TEST(LaunchPlanTest, WorkersAreDealtOutToNodesAndShareTheCpus) {
  const LaunchPlan plan{.nodes = 2, .workers = 3, .model = "/m.gguf"};
  EXPECT_EQ(After(WorkerArguments(plan, 0, kNodes, 8), "--cache"), kNodes[0]);
  EXPECT_EQ(After(WorkerArguments(plan, 1, kNodes, 8), "--cache"), kNodes[1]);
  EXPECT_EQ(After(WorkerArguments(plan, 2, kNodes, 8), "--cache"), kNodes[0]);
  EXPECT_EQ(After(WorkerArguments(plan, 0, kNodes, 8), "--threads"), "2");
  EXPECT_EQ(After(WorkerArguments(plan, 0, kNodes, 2), "--threads"), "1");
}

TEST(LaunchPlanTest, WorkersForPromptsAreDealtOutInTheSameWayAndShareTheCpus) {
  const LaunchPlan plan{.nodes = 2, .workers = 2, .prefill_workers = 2, .model = "/m.gguf"};
  const auto argv = PrefillWorkerArguments(plan, 1, kNodes, 8);
  EXPECT_EQ(PrefillWorkerName(1), "prefill-2");
  EXPECT_EQ(After(argv, "--role"), "prefill");
  EXPECT_EQ(After(argv, "--cache"), After(WorkerArguments(plan, 1, kNodes, 8), "--cache"));
  EXPECT_EQ(After(argv, "--threads"), "2");
  EXPECT_THAT(WorkerArguments(plan, 1, kNodes, 8), Not(Contains("--role")));
}

TEST(LaunchPlanTest, WithoutNodesWorkersHaveNoCache) {
  const LaunchPlan plan{.nodes = 0, .workers = 1, .threads = 5};
  const auto argv = WorkerArguments(plan, 0, {}, 8);
  EXPECT_THAT(argv, Not(Contains("--cache")));
  EXPECT_EQ(After(argv, "--threads"), "5");
}

TEST(LaunchPlanTest, TheRouterKnowsWorkersAndNodes) {
  const LaunchPlan plan{.model = "/m.gguf"};
  const auto argv = RouterArguments(plan, "127.0.0.1:8080", {"127.0.0.1:3", "127.0.0.1:4"}, kNodes);
  EXPECT_EQ(After(argv, "--model"), "/m.gguf");
  EXPECT_EQ(After(argv, "--http.listen"), "127.0.0.1:8080");
  EXPECT_EQ(After(argv, "--workers"), "127.0.0.1:3,127.0.0.1:4");
  EXPECT_EQ(After(argv, "--cache"), "127.0.0.1:1,127.0.0.1:2");
  EXPECT_THAT(RouterArguments(plan, "", {"127.0.0.1:3"}, {}), Not(Contains("--cache")));
}

// So that they win over what the plan chose.
TEST(LaunchPlanTest, SettingsOfTheUserComeLast) {
  const LaunchPlan plan{.nodes = 1, .node_settings = {"host.capacity=1GiB", "log.level=debug"}};
  const auto argv = NodeArguments(plan, 0, {"127.0.0.1:1"}, "/d");
  const std::vector<std::string> end(argv.end() - 4, argv.end());
  EXPECT_EQ(end,
            (std::vector<std::string>{"--set", "host.capacity=1GiB", "--set", "log.level=debug"}));
}

}  // namespace
}  // namespace cairn::cli
