// `cairn size` as a user calls it, and what a node really allocates.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/cli_support.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

// How many times the second is larger than the first, or smaller.
double Apart(double a, double b) { return std::max(a, b) / std::min(a, b); }

// Blocks of a worker in a node, in RAM and on disk.
struct Stored {
  double host_bytes = 0;
  double disk_bytes = 0;
};
Stored StoreByWorker(const std::string& recipe, const std::string& text) {
  const TemporaryDirectory dir;
  const auto node =
      CacheNode::Start({"--disk.path", dir.path() + "/disk", "--disk.capacity", "64MiB"});
  if (!node.ok()) {
    ADD_FAILURE() << node.status();
    return {};
  }
  const CommandResult pushed =
      Cairn({"generate", "--model", kTinyModel, "--raw", "--prompt-file", text, "--max-tokens", "1",
             "--cache", (*node)->address(), "--recipe", recipe, "--json"});
  EXPECT_EQ(pushed.code, 0) << pushed.err;
  // Writing to disk goes on behind.
  for (int i = 0; i < 100; ++i) {
    const auto stat = Cairn({"stat", "--cache", (*node)->address(), "--json"}).Json();
    if (stat["unflushed_bytes"] != 0) continue;
    const auto of = [&](const char* tier) {
      const double blocks = stat["tiers"][tier]["blocks"];
      EXPECT_GT(blocks, 1) << stat;
      return stat["tiers"][tier]["used_bytes"].get<double>() / blocks;
    };
    return {of("host"), of("disk")};
  }
  ADD_FAILURE() << "the copy to disk does not end";
  return {};
}

TEST(CliSizeTest, ANodeAllocatesWhatItSays) {
  const TemporaryDirectory dir;
  const std::string text = WriteSmallDocument(dir.path());
  for (const std::string recipe : {"raw", "int8", "fp8", "host=int8>disk=int4"}) {
    const auto said = Cairn({"size", kTinyModel, "--recipe", recipe, "--json"}).Json();
    const auto& row = said["kv"][0]["recipes"][0];
    ASSERT_TRUE(row["exact"].get<bool>()) << row;
    const Stored stored = StoreByWorker(recipe, text);
    EXPECT_LE(Apart(row["block_room_in_host"], stored.host_bytes), 1.03) << recipe << row;
    EXPECT_LE(Apart(row["block_room_on_disk"], stored.disk_bytes), 1.03) << recipe << row;
  }
}

TEST(CliSizeTest, ShapesComeFromFlagsAndFolders) {
  const auto flags = Cairn({"size", "--layers", "61", "--latent-dim", "512", "--rope-dim", "64",
                            "--dtype", "bf16", "--recipe", "raw", "--json"})
                         .Json();
  EXPECT_EQ(flags["attention"], "MLA");
  EXPECT_EQ(flags["kv"][0]["raw_bytes_per_token"], 61 * 576 * 2);
  EXPECT_EQ(Cairn({"size", "--model", kTinyModel, "--json"}).out,
            Cairn({"size", kTinyModel, "--json"}).out);

  const TemporaryDirectory dir;
  std::ofstream(dir.path() + "/config.json")
      << R"({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4,
             "head_dim": 64, "max_position_embeddings": 1000})";
  const CommandResult folder = Cairn({"size", dir.path(), "--ram", "64MiB", "--disk", "1GiB"});
  ASSERT_EQ(folder.code, 0) << folder.err;
  EXPECT_THAT(folder.out, HasSubstr("llama, MHA"));
  EXPECT_THAT(folder.out, HasSubstr("1,000 tokens"));
}

TEST(CliSizeTest, WhatItCannotTellItSays) {
  const TemporaryDirectory dir;
  std::ofstream(dir.path() + "/config.json") << R"({"model_type": "nothing"})";
  const CommandResult unknown = Cairn({"size", dir.path()});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_EQ(unknown.out, "");
  EXPECT_THAT(unknown.err, HasSubstr("'model_type' is \"nothing\", which is not known"));
  EXPECT_EQ(Cairn({"size", dir.path() + "/none"}).code, 1);
  EXPECT_EQ(Cairn({"size"}).code, 2);
  EXPECT_EQ(Cairn({"size", kTinyModel, "--layers", "3"}).code, 2);
  EXPECT_EQ(Cairn({"size", "--model", kTinyModel, "--layers", "3"}).code, 2);
  EXPECT_EQ(Cairn({"size", kTinyModel, "--model", kTinyModel}).code, 2);
  // No recipe that a node would take.
  const CommandResult refused = Cairn(
      {"size", "--layers", "2", "--latent-dim", "512", "--rope-dim", "64", "--recipe", "int8"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.out, HasSubstr("plane 'latent'"));
}

// The error that it prints for a command line that it refuses, and nothing else.
std::string Refused(std::vector<std::string> args) {
  args.insert(args.begin(), "size");
  const CommandResult result = Cairn(std::move(args));
  EXPECT_NE(result.code, 0) << result.out;
  EXPECT_EQ(result.out, "");
  return result.err;
}

TEST(CliSizeTest, ShapesThatNoModelHasAreRefused) {
  const auto of = [](std::vector<std::string> more) {
    std::vector<std::string> args = {"--layers", "4", "--heads", "8", "--head-dim", "64"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  EXPECT_THAT(Refused(of({"--kv-heads", "3"})),
              HasSubstr("--kv-heads: got 3, expected a divisor of the 8 of --heads"));
  EXPECT_THAT(Refused(of({"--kv-heads", "16"})), HasSubstr("--kv-heads: got 16"));
  EXPECT_THAT(Refused(of({"--window", "512", "--window-layers", "5"})),
              HasSubstr("--window-layers: got 5, expected at most the 4 layers"));
  EXPECT_THAT(Refused(of({"--ram", "0"})), HasSubstr("--ram: got '0', expected a size above 0"));
  EXPECT_THAT(Refused(of({"--disk", "0B"})), HasSubstr("--disk: got '0B'"));
  EXPECT_EQ(Cairn({"size", "--layers", "4", "--heads", "8", "--kv-heads", "2", "--head-dim", "64",
                   "--window", "512", "--window-layers", "4", "--ram", "1MiB"})
                .code,
            0);
}

TEST(CliSizeTest, AWrongCommandLineIsExitCodeTwo) {
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"--layers", "32"}, "--heads (or --kv-heads"},
      {{kTinyModel, "--recipe", "int9"}, "--recipe int9: codec: got 'int9'"},
      {{kTinyModel, "--recipe", ""}, "--recipe: got ''"},
      {{kTinyModel, "--ram", "16"}, "--ram: got '16', expected a size with a unit, such as 16MiB"},
  };
  for (const auto& [args, message] : wrong) {
    std::vector<std::string> all = {"size"};
    all.insert(all.end(), args.begin(), args.end());
    const CommandResult result = Cairn(all);
    EXPECT_EQ(result.code, 2) << message;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr(message));
  }
}

TEST(CliSizeTest, AFolderWithAGgufAndANameOfAHubAreExplained) {
  const TemporaryDirectory dir;
  EXPECT_THAT(Refused({dir.path()}), HasSubstr("has no config.json\n"));
  std::ofstream(dir.path() + "/m.gguf") << "GGUF";
  EXPECT_THAT(Refused({dir.path()}), HasSubstr("give the GGUF file itself: m.gguf"));
  EXPECT_THAT(Refused({"meta-llama/Llama-3.1-8B"}), HasSubstr("names of a hub are not fetched"));
}

TEST(CliSizeTest, FilesThatAreNoModelsAreNamedForWhatTheyAre) {
  const TemporaryDirectory dir;
  const auto refused = [&](const std::string& name, const std::string& bytes) {
    std::ofstream(dir.path() + "/" + name, std::ios::binary) << bytes;
    return Refused({dir.path() + "/" + name});
  };
  EXPECT_THAT(refused("config.json", "{}"), HasSubstr("field 'model_type' is missing"));
  EXPECT_THAT(refused("config.json", ""), HasSubstr("is empty, expected a GGUF file"));
  EXPECT_THAT(refused("config.json", "no"), HasSubstr("is no JSON"));
  EXPECT_THAT(refused("model.gguf", "{}"), HasSubstr("does not begin with \"GGUF\""));
  EXPECT_THAT(refused("model.gguf", "GGUF\3"), HasSubstr("byte 4 of 5"));
  EXPECT_THAT(refused("model.gguf", ReadFile(kTinyModel).substr(0, 1000)), HasSubstr("of 1000: "));
  EXPECT_THAT(Refused({dir.path() + "/none"}), HasSubstr("No such file"));
}

}  // namespace
}  // namespace cairn::testing
