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
  std::ofstream(dir.path() + "/config.json") << R"({"model_type": "mamba2"})";
  const CommandResult unknown = Cairn({"size", dir.path()});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_EQ(unknown.out, "");
  EXPECT_THAT(unknown.err, HasSubstr("'model_type' is \"mamba2\", which is not known"));
  EXPECT_EQ(Cairn({"size", dir.path() + "/none"}).code, 1);
  EXPECT_EQ(Cairn({"size"}).code, 2);
  EXPECT_EQ(Cairn({"size", kTinyModel, "--layers", "3"}).code, 2);
  // No recipe that a node would take.
  const CommandResult refused = Cairn(
      {"size", "--layers", "2", "--latent-dim", "512", "--rope-dim", "64", "--recipe", "int8"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.out, HasSubstr("plane 'latent'"));
}

}  // namespace
}  // namespace cairn::testing
