#include "common/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include "common/status/matchers.h"

namespace cairn::config {
namespace {

using cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

struct Options {
  std::string listen = "127.0.0.1:7400";
  uint64_t capacity = 1ull << 30;
  Duration flush_after = std::chrono::seconds(1);
  uint32_t threads = 4;
  double ratio = 0.5;
  bool tls = false;
  std::vector<std::string> admins;
  std::string level = "info";
  std::string node = "";
};

class ConfigTest : public ::testing::Test {
 protected:
  ConfigTest() {
    schema.Text("listen", &options.listen, "Address.");
    schema.Bytes("host.capacity", &options.capacity, "Arena.", {.min = 1 << 20, .max = 1ull << 40});
    schema.Time("disk.flush_after", &options.flush_after, "Delay.",
                {.max = std::chrono::minutes(1)});
    schema.Integer("rpc.threads", &options.threads, "Threads.",
                   {.min = 1, .max = 64, .unit = "threads"});
    schema.Real("ratio", &options.ratio, "Ratio | share.", {.min = 0, .max = 1});
    schema.Bool("tls.enabled", &options.tls, "TLS.");
    schema.TextList("tls.admins", &options.admins, "Admins.");
    schema.Text("log.level", &options.level, "Level.", {.choices = {"debug", "info"}});
    schema.Text("node.id", &options.node, "Node.", {.env = "CAIRN_NODE_ID_FOR_TEST"});
    schema.Switch("json", &json, "JSON.");
  }
  Options options;
  bool json = false;
  Schema schema{"cairn-test", "A test.", "cairn-test --listen :1"};
};

TEST_F(ConfigTest, AShortFlagAsksForHelpToo) {
  const auto line = Load(schema, {"-h"});
  ASSERT_OK(line);
  EXPECT_EQ(line->output, schema.PrintHelp());
  EXPECT_THAT(line->words, IsEmpty());
}

TEST_F(ConfigTest, HelpSeparatesALongSwitchFromItsMeaning) {
  bool target = false;
  schema.Switch("a-switch-with-quite-a-long-name", &target, "Meaning.");
  EXPECT_THAT(schema.PrintHelp(), HasSubstr("  --a-switch-with-quite-a-long-name  Meaning.\n"));
  EXPECT_THAT(schema.PrintHelp(), HasSubstr("  --json" + std::string(18, ' ') + "JSON.\n"));
}

TEST_F(ConfigTest, ReadsEveryTypeFromYaml) {
  ASSERT_OK(
      schema.ApplyYaml("listen: 0.0.0.0:1\n"
                       "host: {capacity: 512MiB}\n"
                       "disk:\n  flush_after: 250ms\n"
                       "rpc.threads: 8\n"
                       "ratio: 0.25\n"
                       "tls:\n  enabled: yes\n  admins: [a, b]\n"
                       "log: {level: debug}\n",
                       "f.yaml"));
  EXPECT_EQ(options.listen, "0.0.0.0:1");
  EXPECT_EQ(options.capacity, 512u << 20);
  EXPECT_EQ(options.flush_after, std::chrono::milliseconds(250));
  EXPECT_EQ(options.threads, 8u);
  EXPECT_EQ(options.ratio, 0.25);
  EXPECT_TRUE(options.tls);
  EXPECT_THAT(options.admins, ElementsAre("a", "b"));
  EXPECT_EQ(options.level, "debug");
}

TEST_F(ConfigTest, UnknownKeyNamesTheNearestKnownOneAndTheLine) {
  EXPECT_THAT(schema.ApplyYaml("listen: a\nhost:\n  capcity: 1GiB\n", "f.yaml"),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("f.yaml line 3"), HasSubstr("unknown key 'host.capcity'"),
                             HasSubstr("did you mean 'host.capacity'?"))));
  EXPECT_THAT(schema.Set("zzzzzzzzzzzzzzzzzzzz", "1", "flag"),
              StatusIs(StatusCode::kInvalidArgument, Not(HasSubstr("did you mean"))));
}

struct BadValue {
  const char* key;
  const char* value;
  const char* expected;
};

TEST_F(ConfigTest, WrongValueNamesKeyValueAndExpectation) {
  for (const BadValue& bad : std::vector<BadValue>{
           {"host.capacity", "12parsecs", "a size from 1MiB to 1TiB"},
           {"host.capacity", "1KiB", "a size from 1MiB to 1TiB"},
           {"host.capacity", "-1GiB", "a size from"},
           {"host.capacity", "0.3B", "a size from"},
           {"host.capacity", "99999999999999999999", "a size from"},
           {"disk.flush_after", "1", "a time from 0s to 1m"},
           {"disk.flush_after", "61s", "a time from 0s to 1m"},
           {"rpc.threads", "0", "an integer from 1 to 64 threads"},
           {"rpc.threads", "4x", "an integer from 1 to 64 threads"},
           {"rpc.threads", "4294967297", "an integer from 1 to 64 threads"},
           {"ratio", "nan", "a number from 0 to 1"},
           {"tls.enabled", "maybe", "true or false"},
           {"log.level", "loud", "one of debug, info"},
       }) {
    EXPECT_THAT(
        schema.Set(bad.key, bad.value, "flag"),
        StatusIs(StatusCode::kInvalidArgument,
                 AllOf(HasSubstr(bad.key), HasSubstr(std::string("got '") + bad.value + "'"),
                       HasSubstr(bad.expected))));
  }
}

TEST_F(ConfigTest, YamlOfTheWrongShapeIsAnErrorWithItsLine) {
  EXPECT_THAT(schema.ApplyYaml("- a\n", "f"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("mapping")));
  EXPECT_THAT(schema.ApplyYaml("a: [\n", "f"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("f line")));
  EXPECT_THAT(schema.ApplyYaml("listen: [a]\n", "f"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("got a list")));
  EXPECT_THAT(schema.ApplyYaml("rpc: {threads: 2}\nrpc.threads: 3\n", "f"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("given twice")));
  EXPECT_THAT(schema.ApplyYaml("rpc:\n  threads:\n", "f"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("rpc.threads: got no value")));
  // A template that lost its value must not turn something off; an empty text is written as such.
  EXPECT_THAT(schema.ApplyYaml("listen:\n", "f"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("f line 1: listen: got no value")));
  EXPECT_OK(schema.ApplyYaml("listen: \"\"\n", "f"));
  EXPECT_OK(schema.ApplyYaml("# nothing\n", "f"));
}

TEST_F(ConfigTest, ABooleanStandsAloneOrTakesTheNextWord) {
  for (const std::string value : {"false", "no", "off"}) {
    options.tls = true;
    const auto line = Load(schema, {"--tls.enabled", value});
    ASSERT_OK(line);
    EXPECT_FALSE(options.tls) << value;
    EXPECT_THAT(line->words, IsEmpty());
  }
  const auto line = Load(schema, {"--tls.enabled", "serve"});
  ASSERT_OK(line);
  EXPECT_TRUE(options.tls);
  EXPECT_THAT(line->words, ElementsAre("serve"));
}

TEST_F(ConfigTest, AListMayComeInSeveralFlags) {
  const std::string path =
      ::testing::TempDir() + "cairn_config_list_test." + std::to_string(getpid());
  std::ofstream(path) << "tls: {admins: [file]}\nlisten: file\n";
  ASSERT_OK(Load(schema, {"--config", path, "--tls.admins", "a", "--listen", "one", "--set",
                          "tls.admins=b,c", "--tls.admins=d", "--listen", "two"}));
  EXPECT_THAT(options.admins, ElementsAre("a", "b", "c", "d"));
  EXPECT_EQ(options.listen, "two");
}

TEST_F(ConfigTest, FlagsWinOverEnvironmentOverFile) {
  const std::string path = ::testing::TempDir() + "cairn_config_test." + std::to_string(getpid());
  std::ofstream(path) << "node: {id: file}\nrpc: {threads: 2}\nlisten: file\n";
  ::setenv("CAIRN_NODE_ID_FOR_TEST", "env", 1);
  const auto line = Load(schema, {"--listen", "flag", "serve", "--config", path, "--json", "--set",
                                  "host.capacity=2MiB", "--ratio=0.75", "--tls.enabled"});
  ::unsetenv("CAIRN_NODE_ID_FOR_TEST");
  ASSERT_OK(line);
  EXPECT_FALSE(line->exit);
  EXPECT_THAT(line->words, ElementsAre("serve"));
  EXPECT_EQ(options.node, "env");
  EXPECT_EQ(options.threads, 2u);
  EXPECT_EQ(options.listen, "flag");
  EXPECT_EQ(options.capacity, 2u << 20);
  EXPECT_EQ(options.ratio, 0.75);
  EXPECT_TRUE(options.tls);
  EXPECT_TRUE(json);
}

TEST_F(ConfigTest, SpacesAroundCommasAreNotPartOfAList) {
  ASSERT_OK(Load(schema, {"--tls.admins", "a b, c ,  d"}));
  EXPECT_THAT(options.admins, ElementsAre("a b", "c", "d"));
}

TEST_F(ConfigTest, FlagErrorsNameTheFlag) {
  EXPECT_THAT(Load(schema, {"--host.capcity", "1GiB"}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("did you mean '--host.capacity'?")));
  EXPECT_THAT(Load(schema, {"--listen"}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("--listen")));
  EXPECT_THAT(Load(schema, {"--set", "listen"}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("KEY=VALUE")));
  EXPECT_THAT(Load(schema, {"--json=1"}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("no value")));
  EXPECT_THAT(Load(schema, {"--config", "/nowhere.yaml"}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("/nowhere.yaml")));
}

TEST_F(ConfigTest, ChecksRunAfterAllSources) {
  schema.Check([this] {
    return options.threads == 7 ? InvalidArgument("rpc.threads: got 7, expected another")
                                : OkStatus();
  });
  EXPECT_OK(Load(schema, {"--check-config"}));
  EXPECT_THAT(Load(schema, {"--check-config", "--rpc.threads", "7"}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("rpc.threads")));
}

TEST_F(ConfigTest, TheErrorOfACheckNamesTheSourceOfTheSetting) {
  schema.Check([this] { return InvalidArgument("listen: got '{}', expected it", options.listen); });
  EXPECT_THAT(Load(schema, {}), StatusIs(StatusCode::kInvalidArgument, StartsWith("listen: got")))
      << "a default";
  ASSERT_OK(schema.ApplyYaml("host: {capacity: 3MiB}\nlisten: x", "f.yaml"));
  EXPECT_THAT(schema.RunChecks(),
              StatusIs(StatusCode::kInvalidArgument, StartsWith("f.yaml line 2: listen: got 'x'")));
  EXPECT_THAT(Load(schema, {"--listen", "y"}),
              StatusIs(StatusCode::kInvalidArgument, StartsWith("listen: got 'y'")));
}

TEST_F(ConfigTest, AVariableThatIsNamedLikeASettingIsNotIgnoredSilently) {
  const auto with = [&](const std::string& name) {
    return schema.UnreadVariables([&](const char* asked) { return asked == name ? "x" : nullptr; });
  };
  EXPECT_THAT(with("CAIRN_HOST_CAPACITY"),
              ElementsAre("environment variable CAIRN_HOST_CAPACITY: nothing reads it, expected "
                          "--host.capacity"));
  EXPECT_THAT(with("CAIRN_NODE_ID"), ElementsAre(HasSubstr("--node.id or CAIRN_NODE_ID_FOR_TEST")));
  EXPECT_THAT(with("CAIRN_NODE_ID_FOR_TEST"), IsEmpty()) << "it is read";
  EXPECT_THAT(with("CAIRN_CACHE_PORT"), IsEmpty()) << "Kubernetes sets it";
  EXPECT_THAT(schema.PrintHelp(), HasSubstr("Environment: CAIRN_NODE_ID_FOR_TEST."));
}

TEST_F(ConfigTest, ChecksOnRequestRunWithCheckConfigOnly) {
  schema.CheckOnRequest([this] {
    return options.threads == 7 ? InvalidArgument("rpc.threads: got 7, expected another")
                                : OkStatus();
  });
  EXPECT_OK(Load(schema, {"--check-config"}));
  EXPECT_OK(Load(schema, {"--rpc.threads", "7"}));
  EXPECT_OK(Load(schema, {"--print-config"}));
  EXPECT_THAT(Load(schema, {"--check-config"}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("rpc.threads")));
}

TEST_F(ConfigTest, WhatACheckTellsFollowsTheSettings) {
  schema.TellOnRequest([this] { return fmt::format("threads: {}", options.threads); });
  schema.TellOnRequest([] { return std::string(); });
  schema.TellOnRequest([] { return std::string("more"); });
  const auto told = Load(schema, {"--check-config", "--rpc.threads", "7"});
  ASSERT_OK(told);
  EXPECT_TRUE(told->exit);
  EXPECT_EQ(told->output, "the configuration is valid\nthreads: 7\nmore\n");
}

TEST_F(ConfigTest, PrintedConfigurationReadsBackEqual) {
  ASSERT_OK(schema.ApplyYaml(
      "listen: '[::1]:7'\nhost: {capacity: 3MiB}\ntls: {admins: ['a b', 'x#y: z']}\n"
      "disk: {flush_after: 1500ms}\nnode: {id: 'true'}\n",
      "f"));
  const auto line = Load(schema, {"--print-config"});
  ASSERT_OK(line);
  EXPECT_TRUE(line->exit);
  const std::string printed = line->output;
  EXPECT_THAT(printed, HasSubstr("# Arena. Expected: a size"));
  options = Options();
  ASSERT_OK(schema.ApplyYaml(printed, "printed"));
  EXPECT_EQ(options.listen, "[::1]:7");
  EXPECT_EQ(options.capacity, 3u << 20);
  EXPECT_EQ(options.flush_after, std::chrono::milliseconds(1500));
  EXPECT_THAT(options.admins, ElementsAre("a b", "x#y: z"));
  EXPECT_EQ(options.node, "true");
  EXPECT_EQ(schema.PrintYaml(), printed);
}

TEST_F(ConfigTest, OneLineHasTheSettingsThatAreNotTheDefaults) {
  EXPECT_EQ(schema.PrintChanged(), "{}");
  ASSERT_OK(schema.Set("host.capacity", "3MiB", "test"));
  ASSERT_OK(schema.Set("rpc.threads", "4", "test"));  // The default.
  ASSERT_OK(schema.Set("tls.admins", "a,b: c", "test"));
  ASSERT_OK(schema.Set("node.id", "two\nlines", "test"));
  EXPECT_EQ(schema.PrintChanged(),
            R"({host.capacity: 3MiB, tls.admins: [a, "b: c"], node.id: "two\nlines"})");
}

TEST_F(ConfigTest, PrintedTextsReadBackEqualWhateverTheyHold) {
  for (const std::string& text :
       {std::string("a\0b", 3), std::string("a\rb"), std::string("a\tb\x7f"), std::string("a?b"),
        std::string("a: b"), std::string("null"), std::string(" "), std::string("\"\\\n")}) {
    ASSERT_OK(schema.Set("node.id", text, "test"));
    options.admins = {text, "c"};
    const std::string printed = schema.PrintYaml();
    options.node.clear();
    options.admins.clear();
    ASSERT_OK(schema.ApplyYaml(printed, "printed")) << printed;
    EXPECT_EQ(options.node, text);
    EXPECT_THAT(options.admins, ElementsAre(text, "c"));
  }
}

TEST_F(ConfigTest, DocsShowDefaultsNotPresentValues) {
  options.threads = 9;
  EXPECT_THAT(schema.PrintMarkdown(),
              HasSubstr("| `rpc.threads` | `4` | an integer from 1 to 64 threads | Threads. |"));
  EXPECT_THAT(schema.PrintMarkdown(), HasSubstr("Ratio \\| share."));
  EXPECT_THAT(schema.PrintMarkdown(), HasSubstr("Environment: `CAIRN_NODE_ID_FOR_TEST`."));
}

TEST_F(ConfigTest, HelpShowsExampleAndEverySetting) {
  const auto line = Load(schema, {"--help"});
  ASSERT_OK(line);
  EXPECT_TRUE(line->exit);
  EXPECT_THAT(line->output, AllOf(HasSubstr("Example: cairn-test --listen :1"),
                                  HasSubstr("--disk.flush_after (1s)"), HasSubstr("--json")));
}

TEST(UnitsTest, ASizeToAskForIsRoundedUpABit) {
  EXPECT_EQ(FormatBytesUp(0), "0B");
  EXPECT_EQ(FormatBytesUp(1000), "1000B");
  EXPECT_EQ(FormatBytesUp(64 << 10), "64KiB");
  for (const uint64_t bytes : {1ull << 20, 23'449'857ull, (5ull << 30) + 1, (7ull << 40) + 12345}) {
    const uint64_t up = *ParseBytes(FormatBytesUp(bytes));
    EXPECT_GE(up, bytes);
    EXPECT_LE(up - bytes, bytes / 1000) << bytes;
    EXPECT_LE(FormatBytesUp(bytes).size(), 10u) << "1048575KiB is the longest";
  }
}

TEST(UnitsTest, AnErrorOfATimeHasBoundsAndExamplesThatAreAccepted) {
  Duration life{0};
  Schema schema("program", "Summary.");
  schema.Time(
      "life", &life, "Life.",
      {.min = std::chrono::seconds(1), .max = std::chrono::hours(24 * 90), .or_zero = true});
  EXPECT_THAT(Message(schema.Set("life", "500ms", "flag")),
              HasSubstr("got '500ms', expected 0, or a time from 1s to 90d, such as 1s or 5m"));
  for (const char* const legal : {"0", "1s", "5m", "1d", "90d"}) {
    EXPECT_TRUE(schema.Set("life", legal, "flag").ok()) << legal;
  }
  EXPECT_FALSE(schema.Set("life", "91d", "flag").ok());
}

TEST(UnitsTest, SizesAndTimesRoundTrip) {
  for (const uint64_t bytes :
       {0ull, 1ull, 1023ull, 1024ull, 1536ull, 1ull << 20, 3ull << 30, 5ull << 40}) {
    EXPECT_EQ(*ParseBytes(FormatBytes(bytes)), bytes);
  }
  EXPECT_EQ(*ParseBytes("1.5GiB"), 3ull << 29);
  EXPECT_EQ(*ParseBytes("10GB"), 10'000'000'000ull);
  for (const int64_t ns : {0ll, 1ll, 1500ll, 1'000'000ll, 1'500'000'000ll, 60'000'000'000ll,
                           7'200'000'000'000ll, 172'800'000'000'000ll}) {
    EXPECT_EQ(ParseDuration(FormatDuration(Duration(ns)))->count(), ns);
  }
  EXPECT_EQ(FormatDuration(std::chrono::hours(48)), "2d");
  EXPECT_EQ(ParseDuration("1.5d")->count(), 129'600'000'000'000ll);
  EXPECT_FALSE(ParseDuration("-1s").ok());
  EXPECT_FALSE(ParseDuration("1 fortnight").ok());
}

// yaml-cpp would read the first document and leave the others without a word.
TEST(YamlDocumentsTest, OnlyOneIsRead) {
  uint64_t count = 0;
  Schema schema("p", "s");
  schema.Integer("count", &count, "A number.");
  EXPECT_TRUE(schema.ApplyYaml("---\ncount: 1\n...\n", "f").ok());
  EXPECT_TRUE(schema.ApplyYaml("", "f").ok());
  EXPECT_TRUE(schema.ApplyYaml("count: 2\n---\n", "f").ok()) << "a mark at the end";
  EXPECT_EQ(count, 2u);
  const Status two = schema.ApplyYaml("count: 3\n---\ncount: 4\n", "f");
  EXPECT_FALSE(two.ok());
  EXPECT_EQ(count, 2u);
}

TEST(NearestTest, FindsTransposedAndMissingLettersButNothingFarAway) {
  const std::vector<std::string> names = {"host.capacity", "disk.capacity", "listen"};
  EXPECT_EQ(Nearest("hots.capacity", names), "host.capacity");
  EXPECT_EQ(Nearest("disk.capcity", names), "disk.capacity");
  EXPECT_EQ(Nearest("lisen", names), "listen");
  EXPECT_EQ(Nearest("qqqqqq", names), "");
}

}  // namespace
}  // namespace cairn::config
