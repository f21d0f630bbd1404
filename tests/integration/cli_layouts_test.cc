// Models with as many KV heads as heads, with one, and with some, in Cairn's own worker: the same
// answers without a cache, cold, in another process, and after kill -9 of the node; and what
// `cairn size` says of each.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/cli_support.h"
#include "tests/unit/model/gguf_builder.h"

namespace cairn::testing {
namespace {

constexpr uint32_t kHeads = 4, kHeadDim = 16, kLayers = 3;
constexpr int64_t kHidden = kHeads * kHeadDim, kFfn = 96;

// A llama whose answers depend on all of its KV. Written to `directory`.
std::string WriteModel(const std::string& directory, uint32_t kv_heads) {
  model::testing::GgufBuilder b;
  const std::vector<std::string> tokens = {"a", "b", "Ġ", "ab", "<|im_start|>", "<|im_end|>"};
  b.String("general.architecture", "llama").String("general.name", "Layout");
  b.U32("llama.block_count", kLayers).U32("llama.embedding_length", kHidden);
  b.U32("llama.feed_forward_length", kFfn).U32("llama.context_length", 1024);
  b.U32("llama.attention.head_count", kHeads).U32("llama.attention.head_count_kv", kv_heads);
  b.F32("llama.attention.layer_norm_rms_epsilon", 1e-5f).F32("llama.rope.freq_base", 1e4f);
  b.String("tokenizer.ggml.model", "gpt2").String("tokenizer.ggml.pre", "gpt-2");
  b.Strings("tokenizer.ggml.tokens", tokens).Ints("tokenizer.ggml.token_type", {1, 1, 1, 1, 3, 3});
  b.Strings("tokenizer.ggml.merges", {"a b"}).U32("tokenizer.ggml.eos_token_id", 5);
  std::mt19937_64 random(20);
  const auto add = [&](const std::string& name, const std::vector<int64_t>& dims) {
    b.RandomTensor(name, dims, dims.size() == 1 ? 1.0f : 0.2f, random);
  };
  add("token_embd.weight", {kHidden, static_cast<int64_t>(tokens.size())});
  add("output_norm.weight", {kHidden});
  for (uint32_t i = 0; i < kLayers; ++i) {
    const std::string blk = "blk." + std::to_string(i) + ".";
    const int64_t kv = int64_t{kv_heads} * kHeadDim;
    add(blk + "attn_norm.weight", {kHidden});
    add(blk + "attn_q.weight", {kHidden, kHidden});
    add(blk + "attn_k.weight", {kHidden, kv});
    add(blk + "attn_v.weight", {kHidden, kv});
    add(blk + "attn_output.weight", {kHidden, kHidden});
    add(blk + "ffn_norm.weight", {kHidden});
    add(blk + "ffn_gate.weight", {kHidden, kFfn});
    add(blk + "ffn_up.weight", {kHidden, kFfn});
    add(blk + "ffn_down.weight", {kFfn, kHidden});
  }
  const std::string path = directory + "/layout.gguf";
  const std::vector<std::byte> bytes = b.Build();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  return path;
}

std::string WritePrompt(const std::string& directory) {
  std::mt19937_64 random(1);
  std::string text;
  for (int i = 0; i < 400; ++i) text += "ab "[random() % 3];
  std::ofstream(directory + "/prompt.txt") << text;
  return directory + "/prompt.txt";
}

class CliLayoutsTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  // Each call is a process of its own.
  nlohmann::json Ask(std::vector<std::string> more) {
    std::vector<std::string> args = {"generate",      "--model", model_,         "--raw",
                                     "--prompt-file", prompt_,   "--max-tokens", "16",
                                     "--ignore-eos",  "--json"};
    args.insert(args.end(), more.begin(), more.end());
    const CommandResult result = Cairn(args);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.Json();
  }
  std::unique_ptr<CacheNode> StartNode() {
    auto node =
        CacheNode::Start({"--disk.path", directory_.path() + "/disk", "--disk.capacity", "64MiB"});
    EXPECT_TRUE(node.ok()) << node.status();
    return node.ok() ? *std::move(node) : nullptr;
  }
  nlohmann::json Stat(const CacheNode& node) {
    return Cairn({"stat", "--cache", node.address(), "--json"}).Json();
  }
  // The copy to disk goes on behind.
  nlohmann::json StatWithAllOnDisk(const CacheNode& node) {
    for (int i = 0; i < 100; ++i) {
      auto stat = Stat(node);
      if (stat["unflushed_bytes"] == 0) return stat;
    }
    ADD_FAILURE() << "the copy to disk does not end";
    return Stat(node);
  }

  const TemporaryDirectory directory_;
  const std::string model_ = WriteModel(directory_.path(), GetParam());
  const std::string prompt_ = WritePrompt(directory_.path());
};

TEST_P(CliLayoutsTest, AnswersAreThoseWithoutACache) {
  const auto expected = Ask({"--no-cache"});
  ASSERT_GT(expected["prompt_tokens"], 200);
  auto node = StartNode();
  ASSERT_NE(node, nullptr);
  const auto same = [&](const nlohmann::json& answer) {
    EXPECT_EQ(answer["tokens"], expected["tokens"]);
    EXPECT_EQ(answer["prompt_logits_sha256"], expected["prompt_logits_sha256"]);
    return answer["fetched_tokens"].get<int>();
  };
  const int whole = (expected["prompt_tokens"].get<int>() - 1) / 64 * 64;
  EXPECT_EQ(same(Ask({"--cache", node->address()})), 0);
  EXPECT_EQ(same(Ask({"--cache", node->address()})), whole);

  const auto before = StatWithAllOnDisk(*node);
  const auto said = Cairn({"size", model_, "--recipe", "raw", "--json"}).Json();
  EXPECT_EQ(said["attention"], GetParam() == 1 ? "MQA" : GetParam() == kHeads ? "MHA" : "GQA");
  const auto& row = said["kv"][0]["recipes"][0];
  for (const char* tier : {"host", "disk"}) {
    const double blocks = before["tiers"][tier]["blocks"];
    const double room = row[std::string("block_room_") + (tier[0] == 'h' ? "in_host" : "on_disk")];
    EXPECT_NEAR(before["tiers"][tier]["used_bytes"].get<double>() / blocks / room, 1, 0.03) << tier;
  }

  node->process().Kill();
  node = StartNode();
  ASSERT_NE(node, nullptr);
  EXPECT_EQ(same(Ask({"--cache", node->address()})), whole);
  EXPECT_GT(Stat(*node)["fetched_disk_bytes"], 0);
}

INSTANTIATE_TEST_SUITE_P(KvHeads, CliLayoutsTest, ::testing::Values(kHeads, 2, 1),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace cairn::testing
