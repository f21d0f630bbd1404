// `cairn bench` as people and programs run it: each workload for a moment, and what its report
// says.

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/integration/cli_support.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

// As little as still is every step of the workload.
std::vector<std::string> Quick(const std::string& workload, std::vector<std::string> more) {
  std::vector<std::string> args = {"bench", workload,    "--json", "--repeat",
                                   "2",     "--seconds", "0.01"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

void ExpectSamples(const nlohmann::json& series, const std::string& name) {
  ASSERT_TRUE(series.contains("samples")) << name;
  EXPECT_EQ(series["samples"].size(), 2u) << name;
  EXPECT_GT(series["median"].get<double>(), 0) << name;
  EXPECT_LE(series["min"].get<double>(), series["median"].get<double>()) << name;
  EXPECT_GE(series["max"].get<double>(), series["median"].get<double>()) << name;
}

nlohmann::json Report(const CommandResult& result, const std::string& workload,
                      const std::vector<std::string>& metrics) {
  EXPECT_EQ(result.code, 0) << result.err;
  if (result.code != 0) return {};
  auto report = result.Json();
  EXPECT_EQ(report["workload"], workload);
  EXPECT_EQ(report["trials"], 2);
  EXPECT_TRUE(report["facts"].contains("tcp_congestion_control"));
  for (const char* yardstick : {"memref", "tcp"})
    ExpectSamples(report["yardsticks"][yardstick], yardstick);
  for (const std::string& name : metrics) {
    EXPECT_TRUE(report["metrics"].contains(name)) << name << " in " << report["metrics"].dump();
    if (!report["metrics"].contains(name)) continue;
    const auto& metric = report["metrics"][name];
    ExpectSamples(metric, name);
    EXPECT_EQ(metric["unit"] == "GB/s", metric.contains("x_memref")) << name;
  }
  return report;
}

TEST(CliBenchTest, GetReadsOverGrpcAndInSharedMemory) {
  const std::vector<std::string> metrics = {"throughput", "p50", "p99"};
  const auto grpc = Report(
      Cairn(Quick("get", {"--data", "8MiB", "--size", "64KiB", "--batch", "16", "--path", "grpc"})),
      "get", metrics);
  EXPECT_EQ(grpc["facts"]["path"], "grpc");
  const auto local = Report(
      Cairn(Quick("get", {"--data", "8MiB", "--layers", "4", "--path", "local"})), "get", metrics);
  EXPECT_EQ(local["facts"]["path"], "local");
  Report(Cairn(Quick("get", {"--data", "8MiB", "--path", "local", "--lent"})), "get", metrics);
}

TEST(CliBenchTest, GetMayLookUpInEachCallAndLeaveOutChecksums) {
  const auto report =
      Report(Cairn(Quick("get", {"--data", "8MiB", "--lookup", "--no-verify", "--clients", "3"})),
             "get", {"throughput"});
  EXPECT_EQ(report["options"]["verify"], false);
  EXPECT_EQ(report["options"]["clients"], 3);
}

TEST(CliBenchTest, PutStoresOnBothPaths) {
  for (const std::string path : {"grpc", "local"}) {
    const auto report = Report(
        Cairn(Quick("put", {"--data", "8MiB", "--batch", "2", "--depth", "2", "--path", path})),
        "put", {"throughput", "p50"});
    EXPECT_EQ(report["facts"]["path"], path);
  }
}

TEST(CliBenchTest, KeysAreAskedForAndMatched) {
  Report(Cairn(Quick("exists", {"--data", "8MiB", "--batch", "256"})), "exists", {"keys", "p50"});
  Report(Cairn(Quick("match", {"--data", "8MiB", "--batch", "64"})), "match", {"keys", "p50"});
  Report(Cairn(Quick("match", {"--data", "8MiB", "--batch", "64", "--no-lease"})), "match",
         {"keys"});
}

TEST(CliBenchTest, DiskAndPrefetchReadWhatSurvivedTheKill) {
  Report(Cairn(Quick("disk", {"--data", "16MiB"})), "disk", {"write", "read"});
  Report(Cairn(Quick("prefetch", {"--data", "16MiB", "--batch", "8"})), "prefetch",
         {"prefetch", "get from disk", "get after a hint"});
}

TEST(CliBenchTest, SessionsAreCountedInMemory) {
  Report(Cairn(Quick("sessions", {"--clients", "64"})), "sessions", {"open"});
}

TEST(CliBenchTest, TtftComparesLogits) {
  const TemporaryDirectory directory;
  const auto report = Report(Cairn(Quick("ttft", {"--model", kTinyModel, "--prompt-file",
                                                  WriteSmallDocument(directory.path())})),
                             "ttft", {"computed", "fetched", "speed-up", "from the cache"});
}

TEST(CliBenchTest, PeopleGetATableWithRatios) {
  const auto result = Cairn(
      {"bench", "get", "--repeat", "1", "--seconds", "0.01", "--data", "8MiB", "--tcp", "reno"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("x memref"));
  EXPECT_THAT(result.out, HasSubstr("x tcp_reno"));
  EXPECT_THAT(result.out, HasSubstr("throughput"));
}

TEST(CliBenchTest, AWrongCommandLineDoesNothing) {
  const auto unknown = Cairn({"bench", "gte"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("gte"));
  const auto size = Cairn({"bench", "get", "--size", "big"});
  EXPECT_EQ(size.code, 2);
  EXPECT_THAT(size.err, HasSubstr("--size"));
  const auto path = Cairn({"bench", "get", "--path", "pigeon"});
  EXPECT_EQ(path.code, 2);
}

TEST(CliBenchTest, ANodeThatIsAwayIsAnError) {
  const auto result = Cairn({"bench", "get", "--cache", "127.0.0.1:1", "--data", "1MiB"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("127.0.0.1:1"));
  EXPECT_THAT(result.err, HasSubstr("Connection refused"));  // Not what followed from it.
}

}  // namespace
}  // namespace cairn::testing
