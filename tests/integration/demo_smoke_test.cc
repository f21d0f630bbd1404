// The whole demo with a tiny model: every phase, real processes, a few seconds.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <set>

#include "tests/integration/cli_support.h"
#include "tests/integration/demo_support.h"
#include "tests/support/methods.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Processes whose command line names the directory: what a demo left behind.
std::vector<std::string> ProcessesThatName(const std::string& text) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::string line = ReadFile(entry.path().string() + "/cmdline");
    std::replace(line.begin(), line.end(), '\0', ' ');
    const std::string pid = entry.path().filename().string();
    if (line.find(text) != line.npos && pid != std::to_string(getpid()))
      found.push_back(pid + ": " + line);
  }
  return found;
}

std::vector<std::string> DemoArgs(const std::string& directory, const std::string& questions) {
  return {"demo",
          "--model",
          kTinyModel,
          "--out",
          directory,
          "--document",
          WriteDocumentWithWaymarks(directory),
          "--questions",
          questions,
          "--turns",
          "2"};
}

// The row has `bits` a number and some for headers, masks and the first token.
void ExpectLossyRow(const nlohmann::json& row, const std::string& recipe, double bits) {
  EXPECT_THAT(row["recipe"].get<std::string>(), ::testing::StartsWith(recipe)) << row;
  EXPECT_GT(row["bits_per_number"].get<double>(), bits) << row;
  EXPECT_LT(row["bits_per_number"].get<double>(), bits + 0.5) << row;
  // Not one byte is read in place: it is decoded.
  EXPECT_EQ(row["lent_bytes"], 0) << row;
  EXPECT_GT(row["copied_bytes"].get<int64_t>(), 0) << row;
  // The same logits would mean that the KV was computed, or is not that of the recipe.
  EXPECT_EQ(row["identical"], false) << row;
}

// Rows of the cluster: what came from another node, and who died.
void ExpectClusterRow(const nlohmann::json& row) {
  const std::string name = row["name"];
  const int64_t peer_bytes = row["peer_bytes"];
  if (name.starts_with("cluster/")) {
    // Nothing of it was at the home. The worker takes blocks without their headers.
    EXPECT_GE(peer_bytes, row["bytes"]) << row;
    EXPECT_TRUE(row["killed"].is_null()) << row;
  } else if (name.starts_with("holder-killed/")) {
    EXPECT_EQ(row["killed"]["node"], "holder") << row;
    EXPECT_EQ(row["killed"]["during_answer"], true) << row;
    EXPECT_GT(row["killed"]["sent_bytes"], 0) << row;
  } else if (name.starts_with("home-killed/")) {
    EXPECT_EQ(row["killed"]["node"], "home") << row;
    EXPECT_EQ(peer_bytes, 0) << row;
  } else {
    EXPECT_EQ(peer_bytes, 0) << row;
    EXPECT_TRUE(row["killed"].is_null()) << row;
  }
}

// A prompt whose KV the worker cannot hold: how much it held, and that the prompt was exact.
void ExpectHeldRow(const nlohmann::json& row) {
  const nlohmann::json& held = row["held"];
  const int64_t all = held["prompt_bytes"];
  EXPECT_EQ(held["same_prompt"], true) << row;
  EXPECT_GT(held["token_s"].get<double>(), 0) << row;
  if (row["name"] == "beyond/full") {
    EXPECT_EQ(held["pool_bytes"], all) << row;
    EXPECT_EQ(held["near_bytes"], 0) << row;
    EXPECT_EQ(row["identical"], true) << row;
    return;
  }
  // A fifth of so short a context is less than a worker needs at least.
  EXPECT_LT(held["pool_bytes"].get<int64_t>(), all * 3 / 4) << row;
  EXPECT_GT(held["near_bytes"].get<int64_t>(), all / 8) << row;
  EXPECT_GT(held["read_bytes"].get<int64_t>(), 0) << row;
  EXPECT_GT(row["bytes"].get<int64_t>(), 0) << row;
  EXPECT_EQ(row["recipe"], "raw") << row;
}

// With two questions and two turns.
std::set<std::string> AllRows() {
  return {"cold/q1",
          "cold/q2",
          "ram/q1",
          "ram/q2",
          "other/q1",
          "other/q2",
          "disk/q1",
          "disk/q2",
          "small-arena/q1",
          "small-arena/q2",
          "chat/turn1",
          "chat/turn2",
          "together/16-chats",
          "long/grpc",
          "long/same-node",
          "beyond/full",
          "beyond/rows",
          "int8/q1",
          "int8/q2",
          "turbo4/q1",
          "turbo4/q2",
          "ada-snapkv/q1",
          "ada-snapkv/q2",
          "chunkkv/q1",
          "chunkkv/q2",
          "cluster/q1",
          "cluster/neighbour",
          "holder-killed/turn2",
          "home-killed/q2"};
}

TEST(DemoSmokeTest, EveryPhaseAnswersLikeAProcessWithoutACache) {
  if (!kBuiltWithMethods) GTEST_SKIP() << kNoMethods;
  const TemporaryDirectory directory;
  std::vector<std::string> args = DemoArgs(directory.path(), "2");
  args.push_back("--json");
  const CommandResult result = Cairn(args);
  ASSERT_EQ(result.code, 0) << result.err;
  const auto report = result.Json();
  EXPECT_EQ(report, nlohmann::json::parse(ReadFile(directory.path() + "/report.json")));
  EXPECT_FALSE(report["model"].get<std::string>().empty());
  EXPECT_FALSE(report["machine"].get<std::string>().empty());

  std::set<std::string> names;
  for (const auto& row : report["rows"]) {
    const std::string name = row["name"];
    names.insert(name);
    EXPECT_FALSE(row["answer"].get<std::string>().empty()) << name;
    const bool cold = name.starts_with("cold/");
    EXPECT_EQ(row["held"].is_null(), !name.starts_with("beyond/")) << name;
    if (name.starts_with("beyond/")) {
      ExpectHeldRow(row);
    } else if (name.starts_with("int8/")) {
      ExpectLossyRow(row, "int8", 8.25);
    } else if (name.starts_with("turbo4/")) {
      ExpectLossyRow(row, "turbo:bits=4", 4.25);
    } else if (name.starts_with("ada-snapkv/") || name.starts_with("chunkkv/")) {
      ExpectLossyRow(row, name.substr(0, name.find('/')) + ":keep=0.4", 0.4 * 4.25);
    } else {
      EXPECT_EQ(row["identical"], true) << name;
      EXPECT_EQ(row["same_ids_as_full"], 64) << name;
      EXPECT_EQ(row["recipe"], cold ? nlohmann::json() : nlohmann::json("raw")) << name;
    }
    EXPECT_EQ(row["fetched_tokens"].get<int>() + row["computed_tokens"].get<int>() +
                  row["shared_tokens"].get<int>(),
              row["prompt_tokens"].get<int>())
        << name;
    ExpectClusterRow(row);
    // All or nothing of its blocks may have come when the holder died.
    if (name.starts_with("holder-killed/") || name.starts_with("beyond/")) continue;
    const bool warm = !cold && name != "chat/turn1";
    EXPECT_EQ(row["fetched_tokens"].get<int>() > 0, warm) << name;
    // In shared memory the node counts what it offers: the idle prefill of a turn asks, and needs
    // nothing.
    if (name != "chat/turn1") {
      EXPECT_EQ(row["bytes"].get<int64_t>() > 0, warm) << name;
    }
    if (name.starts_with("ram/") || name.starts_with("other/")) {
      EXPECT_EQ(row["tiers"]["disk"], 0) << name;
      EXPECT_GT(row["tiers"]["host"], 0) << name;
    }
    if (name.starts_with("disk/")) {
      EXPECT_GT(row["tiers"]["disk"], 0) << name;
    }
  }
  EXPECT_EQ(names, AllRows());
  EXPECT_THAT(ProcessesThatName(directory.path()), ::testing::IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(directory.path() + "/disk")) << "left without --keep";
}

TEST(DemoSmokeTest, TablesShowEveryRowAndPhase) {
  if (!kBuiltWithMethods) GTEST_SKIP() << kNoMethods;
  const TemporaryDirectory directory;
  std::vector<std::string> args = DemoArgs(directory.path(), "1");
  args.push_back("--keep");
  const CommandResult result = Cairn(args);
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* text :
       {"cold/q1", "small-arena/q1", "chat/turn2", "int8: 8.", "turbo4: 4.",
        "chunkkv: ", "16 chats at once", "holder killed while it answers", "home killed",
        "median first token", "report.json", "beyond/rows", "KV of the prompt"}) {
    EXPECT_THAT(result.out, HasSubstr(text));
  }
  EXPECT_TRUE(std::filesystem::exists(directory.path() + "/disk"));
  // Before the first row, and with each phase.
  EXPECT_LT(result.err.find("The demo takes about "), result.err.find("cold/q1"));
  EXPECT_THAT(result.err, HasSubstr("[disk: about "));
  EXPECT_THAT(result.err, Not(HasSubstr("ANSWER DIFFERS")));
}

TEST(DemoSmokeTest, CtrlCLeavesNoProcessBehind) {
  const TemporaryDirectory directory;
  std::vector<std::string> args = DemoArgs(directory.path(), "8");
  args.insert(args.begin(), Binary("cairn"));
  auto process = Process::Start({.argv = args, .environment = {}, .directory = {}});
  ASSERT_TRUE(process.ok()) << process.status();
  // The node's log appears once the node and the workers are being started.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (!std::filesystem::exists(directory.path() + "/worker1.log") &&
         std::chrono::steady_clock::now() < deadline) {
    (void)(*process)->WaitExit(std::chrono::milliseconds(10));
  }
  (*process)->Signal(SIGINT);
  const auto exit = (*process)->WaitExit(std::chrono::seconds(120));
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_TRUE(exit->exited);
  EXPECT_EQ(exit->code, 130);
  EXPECT_THAT(ProcessesThatName(directory.path()), ::testing::IsEmpty());
}

TEST(DemoSmokeTest, AMissingModelIsNamed) {
  const TemporaryDirectory directory;
  const CommandResult result =
      Cairn({"demo", "--model", "/nonexistent.gguf", "--out", directory.path()});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("/nonexistent.gguf"));
}

}  // namespace
}  // namespace cairn::testing
