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

// The first requests of the trace, in a file of their own.
std::string Beginning(const TemporaryDirectory& dir, int requests) {
  std::string path = dir.path() + "/beginning.jsonl";
  std::ifstream in(kTrace);
  std::ofstream out(path);
  std::string line;
  for (int i = 0; i < requests && std::getline(in, line); ++i) out << line << "\n";
  return path;
}

TEST(CliReplayTest, RealNodesHitWhatTheIndexHits) {
  const TemporaryDirectory dir;
  const std::string trace = Beginning(dir, 400);
  // Everything fits, so whatever was asked before is hit.
  const auto expected =
      Cairn({"replay", trace, "--capacity-tokens", "1000000000", "--json"}).Json();
  const auto one = CacheNode::Start({});
  ASSERT_TRUE(one.ok()) << one.status();
  const CommandResult alone =
      Cairn({"replay", trace, "--nodes", (*one)->address(), "--block-bytes", "1024", "--json"});
  ASSERT_EQ(alone.code, 0) << alone.err;
  const auto got = alone.Json();
  EXPECT_EQ(got["requests"], 400);
  EXPECT_EQ(got["hit_rate_blocks"], expected["hit_rate_blocks"]);
  EXPECT_EQ(got["seconds_saved"], expected["seconds_saved"]);
  EXPECT_EQ(got["evictions"], 0);
  EXPECT_EQ(got["refused_blocks"], 0);

  // Another run has a namespace of its own, and a conversation stays at its node.
  const auto two = CacheNode::Start({});
  ASSERT_TRUE(two.ok()) << two.status();
  const CommandResult both =
      Cairn({"replay", trace, "--nodes", (*one)->address() + "," + (*two)->address(),
             "--block-bytes", "1024", "--hints", "50", "--json"});
  ASSERT_EQ(both.code, 0) << both.err;
  EXPECT_EQ(both.Json()["hit_rate_blocks"], expected["hit_rate_blocks"]);
}

TEST(CliReplayTest, ANodeWithoutRoomEvictsAndHitsLess) {
  const TemporaryDirectory dir;
  const std::string trace = Beginning(dir, 400);
  const auto node = CacheNode::Start({"--host.capacity", "4MiB"});
  ASSERT_TRUE(node.ok()) << node.status();
  const CommandResult small =
      Cairn({"replay", trace, "--nodes", (*node)->address(), "--block-bytes", "4096", "--json"});
  ASSERT_EQ(small.code, 0) << small.err;
  const auto all = Cairn({"replay", trace, "--capacity-tokens", "1000000000", "--json"}).Json();
  EXPECT_GT(small.Json()["evictions"], 0);
  EXPECT_GT(small.Json()["hit_rate_blocks"], 0);
  EXPECT_LT(small.Json()["hit_rate_blocks"], all["hit_rate_blocks"]);
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
  EXPECT_EQ(Cairn({"replay", kTrace, "--capacity-tokens", "5000", "--nodes", "localhost:1"}).code,
            2);
}

}  // namespace
}  // namespace cairn::testing
