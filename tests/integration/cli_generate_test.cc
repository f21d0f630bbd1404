// `cairn generate`, `chat`, `stat` and `doctor` with real processes and a tiny model.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/cli_support.h"
#include "tests/support/methods.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kPrompt[] =
    "A cairn is a stack of stones that marks a path for others. People built them on hills and "
    "moors, and "
    "where snow hides the way in winter. Who finds one knows that somebody was here before.";

std::vector<std::string> Generate(std::vector<std::string> more) {
  std::vector<std::string> args = {"generate",      "--model", kTinyModel,     "--max-tokens", "16",
                                   "--temperature", "0",       "--ignore-eos", "--json"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(CliGenerateTest, PrintsOneObjectWithTheDocumentedFields) {
  const CommandResult result = Cairn(Generate({"--prompt", kPrompt}));
  ASSERT_EQ(result.code, 0) << result.err;
  const auto json = result.Json();
  for (const char* field :
       {"prompt_tokens", "fetched_tokens", "computed_tokens", "tokens", "text", "ttft_s", "total_s",
        "finish_reason", "miss_reason", "prompt_logits_sha256"}) {
    EXPECT_TRUE(json.contains(field)) << field;
  }
  EXPECT_EQ(json["tokens"].size(), 16u);
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["fetched_tokens"], 0);
  EXPECT_EQ(json["computed_tokens"], json["prompt_tokens"]);
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1);
}

TEST(CliGenerateTest, RawTextIsNotPutIntoATemplate) {
  const auto raw = Cairn(Generate({"--prompt", kPrompt, "--raw"})).Json();
  const auto chat = Cairn(Generate({"--prompt", kPrompt})).Json();
  EXPECT_LT(raw["prompt_tokens"], chat["prompt_tokens"]);
  // A special token in raw text is one token.
  const auto special =
      Cairn(Generate({"--prompt", std::string(kPrompt) + "<|im_end|>", "--raw"})).Json();
  EXPECT_EQ(special["prompt_tokens"], raw["prompt_tokens"].get<int>() + 1);
}

TEST(CliGenerateTest, TheSecondCallFetchesWhatTheFirstOnePushed) {
  const auto node = CacheNode::Start({});
  ASSERT_TRUE(node.ok()) << node.status();
  const auto cold = Cairn(Generate({"--prompt", kPrompt, "--no-cache"})).Json();
  const auto first = Cairn(Generate({"--prompt", kPrompt, "--cache", (*node)->address()})).Json();
  const auto second = Cairn(Generate({"--prompt", kPrompt, "--cache", (*node)->address()})).Json();
  EXPECT_EQ(first["fetched_tokens"], 0);
  EXPECT_EQ(first["miss_reason"], "absent");
  EXPECT_EQ(second["fetched_tokens"].get<int>(), (cold["prompt_tokens"].get<int>() - 1) / 64 * 64);
  EXPECT_GT(second["fetched_tokens"].get<int>(), 0);
  EXPECT_EQ(second["fetched_tokens"].get<int>() + second["computed_tokens"].get<int>(),
            second["prompt_tokens"].get<int>());
  for (const auto& warm : {first, second}) {
    EXPECT_EQ(warm["tokens"], cold["tokens"]);
    EXPECT_EQ(warm["prompt_logits_sha256"], cold["prompt_logits_sha256"]);
  }

  const CommandResult stat = Cairn({"stat", "--cache", (*node)->address(), "--json"});
  ASSERT_EQ(stat.code, 0) << stat.err;
  EXPECT_EQ(stat.Json()["matched_tokens"], second["fetched_tokens"]);
  EXPECT_GT(stat.Json()["tiers"]["host"]["blocks"], 0);
  const CommandResult table = Cairn({"stat", "--cache", (*node)->address()});
  EXPECT_THAT(table.out, HasSubstr("hit tokens"));
}

TEST(CliGenerateTest, TheTextSaysWhyNothingWasFetched) {
  if (!kBuiltWithMethods) GTEST_SKIP() << kNoMethods;
  const auto node = CacheNode::Start({});
  ASSERT_TRUE(node.ok()) << node.status();
  const auto ask = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {"generate", "--model",      kTinyModel,        "--max-tokens",
                                     "4",        "--ignore-eos", "--raw",           "--prompt",
                                     kPrompt,    "--cache",      (*node)->address()};
    args.insert(args.end(), more.begin(), more.end());
    const CommandResult result = Cairn(args);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.err;
  };
  EXPECT_THAT(ask({}), HasSubstr("0 fetched (absent), "));
  EXPECT_THAT(ask({}), Not(HasSubstr("absent")));
  // The last tokens decide what is kept, and nobody says that others have a question of their own.
  const char* selecting = "snapkv:keep=0.5+raw";
  const std::string alone = ask({"--recipe", selecting});
  EXPECT_THAT(alone, HasSubstr("0 fetched, "));
  EXPECT_THAT(alone, HasSubstr("give --prefix-end"));
  EXPECT_THAT(ask({"--recipe", selecting, "--prefix-end", "128"}), Not(HasSubstr("--prefix-end")));
  EXPECT_THAT(ask({"--recipe", selecting, "--prefix-end", "128"}), HasSubstr(": 128 fetched ("));
}

TEST(CliGenerateTest, AWorkerAtAnAddressGivesTheSameAnswer) {
  auto worker = Process::Start({.argv = {Binary("cairn-worker"), "--model", kTinyModel, "--listen",
                                         "127.0.0.1:0", "--admin.listen", "127.0.0.1:0"},
                                .environment = {},
                                .directory = {}});
  ASSERT_TRUE(worker.ok()) << worker.status();
  const auto ready = (*worker)->WaitForLine("ready", std::chrono::seconds(120));
  ASSERT_TRUE(ready.ok()) << ready.status();
  const size_t at = ready->find("grpc=") + 5;
  const std::string address = ready->substr(at, ready->find(' ', at) - at);
  const auto remote = Cairn(Generate({"--prompt", kPrompt, "--worker", address}));
  ASSERT_EQ(remote.code, 0) << remote.err;
  const auto local = Cairn(Generate({"--prompt", kPrompt})).Json();
  EXPECT_EQ(remote.Json()["tokens"], local["tokens"]);
  EXPECT_EQ(remote.Json()["text"], local["text"]);
  EXPECT_EQ(remote.Json()["prompt_logits_sha256"], local["prompt_logits_sha256"]);
}

TEST(CliGenerateTest, AReadPolicyReadsTheContextByRowsAndSaysSo) {
  if (!kBuiltWithMethods) GTEST_SKIP() << kNoMethods;
  const auto node = CacheNode::Start({});
  ASSERT_TRUE(node.ok()) << node.status();
  const auto resident = Cairn(Generate({"--prompt", kPrompt})).Json();
  EXPECT_FALSE(resident.contains("reading"));
  // The second call fetches what the first one pushed, which the node lends.
  for (const bool fetched : {false, true}) {
    const auto json = Cairn(Generate({"--prompt", kPrompt, "--cache", (*node)->address(),
                                      "--read-policy", "precision:rows=1", "--kv-budget", "64MiB"}))
                          .Json();
    EXPECT_EQ(json["tokens"], resident["tokens"]);
    EXPECT_EQ(json["fetched_tokens"].get<int>() > 0, fetched);
    EXPECT_EQ(json["reading"]["far_tokens"], json["prompt_tokens"].get<int>() / 64 * 64);
    EXPECT_EQ(json["reading"]["late_rows"], 0);
    EXPECT_GT(json["reading"]["read_bytes"], 0);
  }
  const CommandResult plain =
      Cairn({"generate", "--model", kTinyModel, "--max-tokens", "4", "--ignore-eos", "--prompt",
             kPrompt, "--read-policy", "precision"});
  EXPECT_THAT(plain.err, HasSubstr("tokens read by rows"));
}

TEST(CliGenerateTest, ReadPoliciesThatCannotBeAreRefused) {
  if (!kBuiltWithMethods) GTEST_SKIP() << kNoMethods;
  const auto refused = [](std::vector<std::string> more, const char* message) {
    more.insert(more.end(), {"--prompt", kPrompt});
    const CommandResult result = Cairn(Generate(std::move(more)));
    EXPECT_NE(result.code, 0);
    EXPECT_THAT(result.err, HasSubstr(message));
  };
  refused({"--read-policy", "precision", "--kv-budget", "2KiB"}, "expected at least");
  refused({"--kv-budget", "2KiB"}, "--read-policy");
}

TEST(CliGenerateTest, ACacheThatIsAwayDoesNotFailTheRequest) {
  const CommandResult result = Cairn(Generate({"--prompt", kPrompt, "--cache", "127.0.0.1:1"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.Json()["fetched_tokens"], 0);
  EXPECT_EQ(result.Json()["miss_reason"], "unavailable");
  EXPECT_THAT(result.err, HasSubstr("127.0.0.1:1"));
}

TEST(CliGenerateTest, PlainOutputIsTheText) {
  const auto json = Cairn(Generate({"--prompt", kPrompt})).Json();
  const CommandResult plain = Cairn({"generate", "--model", kTinyModel, "--max-tokens", "16",
                                     "--ignore-eos", "--prompt", kPrompt});
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_THAT(plain.err, HasSubstr("prompt tokens"));
  // Bytes that are no UTF-8 are replaced in JSON only.
  if (json["text"].get<std::string>().find("\xef\xbf\xbd") == std::string::npos) {
    EXPECT_EQ(plain.out, json["text"].get<std::string>() + "\n");
  }
}

TEST(CliGenerateTest, ReadsThePromptFromAFileAndFromStandardInput) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/prompt.txt";
  std::ofstream(path) << kPrompt;
  const auto file = Cairn(Generate({"--prompt-file", path})).Json();
  const CommandResult piped =
      RunProcess({"/bin/sh", "-c",
                  Binary("cairn") + " generate --model " + kTinyModel +
                      " --max-tokens 16 --ignore-eos --json --prompt-file - < " + path});
  ASSERT_EQ(piped.code, 0) << piped.err;
  EXPECT_EQ(piped.Json()["tokens"], file["tokens"]);
}

TEST(CliGenerateTest, ErrorsNameWhatIsWrong) {
  const CommandResult model = Cairn({"generate", "--model", "/nonexistent.gguf", "--prompt", "x"});
  EXPECT_EQ(model.code, 1);
  EXPECT_THAT(model.err, HasSubstr("/nonexistent.gguf"));
  const CommandResult prompt =
      Cairn({"generate", "--model", kTinyModel, "--prompt-file", "/nonexistent.txt"});
  EXPECT_EQ(prompt.code, 1);
  EXPECT_THAT(prompt.err, HasSubstr("/nonexistent.txt"));
  const CommandResult worker =
      Cairn({"generate", "--worker", "127.0.0.1:1", "--prompt", "x"}, std::chrono::seconds(120));
  EXPECT_EQ(worker.code, 1);
  EXPECT_THAT(worker.err, HasSubstr("127.0.0.1:1"));
}

TEST(CliGenerateTest, AWrongCommandLineIsExitCodeTwo) {
  EXPECT_EQ(Cairn({}).code, 2);
  EXPECT_EQ(Cairn({"frobnicate"}).code, 2);
  EXPECT_EQ(Cairn({"generate", "--model", kTinyModel}).code, 2);  // No prompt.
  EXPECT_EQ(Cairn({"generate", "--prompt", "x", "--arithmetic", "exact"}).code, 2);
  EXPECT_EQ(Cairn({"generate", "--prompt", "x", "--max-tokens", "0"}).code, 2);
  EXPECT_EQ(Cairn({"generate", "--prompt", "x", "--cache", "a:1", "--no-cache"}).code, 2);
  EXPECT_EQ(Cairn({"completion", "tcsh"}).code, 2);
}

TEST(CliGenerateTest, WhatNoModelCanDoIsAWrongCommandLine) {
  if (!kBuiltWithMethods) GTEST_SKIP() << kNoMethods;
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"--read-policy", "nothing"}, "expected one of precision"},
      {{"--read-policy", "precision:rows=2"}, "parameter 'rows': got '2'"},
      {{"--read-policy", "precision", "--recipe", "streaming:keep=0.4+raw"},
       "which selects tokens"},
      {{"--read-policy", "precision", "--kv-budget", "much"}, "--kv-budget"},
      {{"--read-policy", "precision", "--kv-budget", "64"}, "a unit, such as 64MiB"},
      {{"--recipe", "int9"}, "--recipe: codec: got 'int9'"},
      {{"--device", "gpu"}, "option 'device': got 'gpu', expected cpu, or cuda:N"},
  };
  for (const auto& [flags, message] : wrong) {
    for (const char* command : {"generate", "chat"}) {
      // The model is not looked at.
      std::vector<std::string> args = {command, "--model", "/nonexistent.gguf"};
      if (args[0] == "generate") args.insert(args.end(), {"--prompt", "x"});
      args.insert(args.end(), flags.begin(), flags.end());
      const CommandResult result = Cairn(args);
      EXPECT_EQ(result.code, 2) << command;
      EXPECT_THAT(result.err, HasSubstr(message)) << command;
    }
  }
  EXPECT_EQ(Cairn({"fidelity", "--recipe", "int9"}).code, 2);
  EXPECT_EQ(Cairn({"fidelity", "--read-policy", "nothing"}).code, 2);
  EXPECT_EQ(Cairn({"fidelity", "--context-tokens", "100"}).code, 2);
}

TEST(CliChatTest, ATurnFetchesTheTurnBefore) {
  const CommandResult result =
      RunProcess({"/bin/sh", "-c",
                  std::string("printf 'Who built the first stack of stones on the hill above the "
                              "sea?\\nAnd why?\\n' | ") +
                      Binary("cairn") + " chat --json --max-tokens 64 --model " + kTinyModel +
                      " --system 'You are a guide who knows all about hills, moors and paths.'"});
  ASSERT_EQ(result.code, 0) << result.err;
  std::istringstream lines(result.out);
  std::string line;
  std::vector<nlohmann::json> turns;
  while (std::getline(lines, line)) turns.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(turns.size(), 2u);
  EXPECT_EQ(turns[0]["fetched_tokens"], 0);
  EXPECT_GT(turns[1]["fetched_tokens"].get<int>(), 0);
  EXPECT_GT(turns[1]["prompt_tokens"].get<int>(), turns[0]["prompt_tokens"].get<int>());
}

TEST(CliChatTest, TheTextSaysOfEachTurnWhatGenerateSays) {
  const CommandResult result = RunProcess(
      {"/bin/sh", "-c",
       std::string("echo 'Who built the first stack of stones on the hill above the sea?' | ") +
           Binary("cairn") + " chat --max-tokens 4 --model " + kTinyModel});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("  turn 1: "));
  EXPECT_THAT(result.out, HasSubstr(" prompt tokens: 0 fetched (absent), "));
  EXPECT_THAT(result.out, HasSubstr("; first token "));
}

TEST(CliStatTest, ANodeThatIsAwayIsAFailureInTime) {
  const CommandResult result =
      Cairn({"stat", "--cache", "127.0.0.1:1", "--timeout", "1"}, std::chrono::seconds(120));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("127.0.0.1:1"));
}

TEST(CliDoctorTest, JudgesThisMachine) {
  const CommandResult result = Cairn({"doctor", "--json", "--model", kTinyModel, "--dir", "build"});
  const auto json = result.Json();
  EXPECT_EQ(result.code, json["verdict"] == "fail" ? 1 : 0);
  bool model = false;
  for (const auto& check : json["checks"]) {
    if (check["name"] == "model") model = check["verdict"] == "ok";
  }
  EXPECT_TRUE(model) << result.out;
  EXPECT_THAT(Cairn({"doctor", "--model", "/nonexistent"}).out, HasSubstr("fetch_model.py"));
}

TEST(CliDoctorTest, AsksTheEnginesPythonAboutItsConfiguration) {
  const CommandResult result =
      Cairn({"doctor", "--vllm", "{}", "--vllm-model", "m", "--python", "/bin/echo", "--json"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "-m cairn.doctor --vllm {} --model m --json\n");

  const CommandResult none = Cairn({"doctor", "--vllm", "{}", "--python", "/nonexistent"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("--python /nonexistent: No such file"));
}

TEST(CliHelpTest, EveryCommandShowsAnExample) {
  for (const char* command : {"generate", "chat", "stat", "doctor", "demo", "completion"}) {
    const CommandResult result = Cairn({command, "--help"});
    EXPECT_EQ(result.code, 0);
    EXPECT_THAT(result.out, HasSubstr("Example")) << command;
  }
  EXPECT_THAT(Cairn({"--version"}).out, HasSubstr("cairn "));
  EXPECT_THAT(Cairn({"completion", "bash"}).out, HasSubstr("--prompt-file"));
}

}  // namespace
}  // namespace cairn::testing
