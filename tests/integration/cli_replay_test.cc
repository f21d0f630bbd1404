// `cairn replay` as a user calls it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/cli_support.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kTrace[] = "tests/data/traces/conversation_trace.jsonl";

CommandResult Replay(const std::string& policy, std::vector<std::string> more = {}) {
  std::vector<std::string> args = {"replay", kTrace,  "--capacity-tokens", "3000000", "--policy",
                                   policy,   "--json"};
  args.insert(args.end(), more.begin(), more.end());
  return Cairn(args);
}

TEST(CliReplayTest, PoliciesStandAsTheDocumentationSays) {
  double lru = 0;
  for (const std::string policy : {"lru", "cairn", "optimum"}) {
    const CommandResult result = Replay(policy);
    ASSERT_EQ(result.code, 0) << result.err;
    const auto json = result.Json();
    for (const char* field :
         {"hit_rate_blocks", "hit_rate_tokens", "seconds_saved", "evictions", "disk_writes"}) {
      EXPECT_TRUE(json.contains(field)) << field;
    }
    const double hit = json["hit_rate_blocks"];
    EXPECT_GE(hit, lru) << policy;
    if (policy == "lru") {
      EXPECT_NEAR(hit, 0.136, 0.001);
    } else if (policy == "optimum") {
      EXPECT_NEAR(hit, 0.353, 0.001);
    }
    lru = std::max(lru, hit);
  }
  const auto hinted = Replay("cairn", {"--hints", "100"}).Json();
  EXPECT_GT(hinted["hit_rate_blocks"].get<double>(), 0.25);
}

TEST(CliReplayTest, AWrongTraceOrCommandLineIsNamed) {
  const TemporaryDirectory dir;
  const std::string path = dir.path() + "/t.jsonl";
  std::ofstream(path) << R"({"timestamp": 0, "input_length": 600, "hash_ids": [1, 2]})"
                      << "\n"
                      << R"({"timestamp": 0, "input_length": 600, "hash_ids": [1]})"
                      << "\n";
  const CommandResult bad = Cairn({"replay", path, "--capacity-tokens", "5000"});
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.err, HasSubstr("line 2: field 'hash_ids': got 1 numbers, expected 2"));
  EXPECT_EQ(Cairn({"replay", "nowhere.jsonl", "--capacity-tokens", "5000"}).code, 1);
  EXPECT_EQ(Cairn({"replay", path}).code, 2);
  EXPECT_EQ(Cairn({"replay", path, "--capacity-tokens", "5000", "--policy", "best"}).code, 2);
  EXPECT_EQ(Cairn({"replay", path, "--capacity-tokens", "5"}).code, 2);
}

}  // namespace
}  // namespace cairn::testing
