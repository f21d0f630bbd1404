#include "tools/cairn/size/config_shape.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn::cli::size {
namespace {

using testing::HasSubstr;

// Fields and values of published models: what counts for KV, nothing else.
constexpr char kLlama31[] = R"({"model_type": "llama", "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
  "max_position_embeddings": 131072, "torch_dtype": "bfloat16"})";
constexpr char kDeepSeekV3[] = R"({"model_type": "deepseek_v3", "num_hidden_layers": 61,
  "num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 7168,
  "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128, "torch_dtype": "bfloat16"})";
constexpr char kGemma3n[] = R"({"model_type": "gemma3n", "torch_dtype": "bfloat16",
  "text_config": {"model_type": "gemma3n_text", "num_hidden_layers": 10, "head_dim": 256,
  "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 2048,
  "num_kv_shared_layers": 5, "sliding_window": 512, "layer_types": [
  "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
  "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
  "sliding_attention", "full_attention"]}})";
constexpr char kT5Small[] = R"({"model_type": "t5", "num_layers": 6, "num_heads": 8, "d_kv": 64,
  "d_model": 512, "n_positions": 512})";

Result<ModelShape> Read(std::string_view text) { return ShapeOfConfig(text, "config.json", {}); }

TEST(ConfigShapeTest, HeadsOfEveryKind) {
  const auto gqa = Read(kLlama31);
  ASSERT_TRUE(gqa.ok()) << gqa.status();
  EXPECT_EQ(gqa->attention, Attention::kGqa);
  EXPECT_EQ(gqa->context_tokens, 131072u);
  EXPECT_EQ(BytesOfToken(gqa->layers), 32u * 2 * 8 * 128 * 2);
  EXPECT_EQ(gqa->layers[0].planes, KeysAndValues(8, 128, 128, DType::kBF16));

  // No KV heads: as many as query heads.
  const auto mha = Read(R"({"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768})");
  ASSERT_TRUE(mha.ok()) << mha.status();
  EXPECT_EQ(mha->attention, Attention::kMha);
  EXPECT_EQ(BytesOfToken(mha->layers), 12u * 2 * 768 * 2);

  const auto mqa = Read(R"({"model_type": "falcon", "num_hidden_layers": 32,
    "num_attention_heads": 71, "hidden_size": 4544, "multi_query": true, "num_kv_heads": 71})");
  ASSERT_TRUE(mqa.ok()) << mqa.status();
  EXPECT_EQ(mqa->attention, Attention::kMqa);
  EXPECT_EQ(BytesOfToken(mqa->layers), 32u * 2 * 64 * 2);
}

TEST(ConfigShapeTest, LatentAttentionKeepsTheLatentAndTheRotaryKey) {
  const auto shape = Read(kDeepSeekV3);
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->attention, Attention::kMla);
  EXPECT_EQ(BytesOfToken(shape->layers), 61u * (512 + 64) * 2);
}

TEST(ConfigShapeTest, SharedLayersKeepNothingAndWindowsAreKnown) {
  const auto shape = Read(kGemma3n);
  ASSERT_TRUE(shape.ok()) << shape.status();
  ASSERT_EQ(shape->layers.size(), 10u);
  EXPECT_EQ(shape->layers[4].window, 0u);
  EXPECT_EQ(shape->layers[3].window, 512u);
  EXPECT_TRUE(shape->layers[5].planes.empty());
  // The type of the outer file, since the inner one does not have it.
  EXPECT_EQ(shape->layers[0].planes[0].dtype, DType::kBF16);
  EXPECT_EQ(BytesOfToken(shape->layers), 5u * 2 * 2 * 256 * 2);
  // Four layers have the window, one needs everything.
  EXPECT_EQ(BytesInUse(shape->layers, 4096), 2u * 2 * 256 * 2 * (4 * 512 + 4096));
}

TEST(ConfigShapeTest, WindowsWithoutALayerListFollowTheFamily) {
  const auto gemma2 = Read(R"({"model_type": "gemma2", "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096})");
  ASSERT_TRUE(gemma2.ok()) << gemma2.status();
  EXPECT_EQ(gemma2->layers[0].window, 4096u);
  EXPECT_EQ(gemma2->layers[1].window, 0u);
  const auto qwen = Read(R"({"model_type": "qwen2", "num_hidden_layers": 3,
    "num_attention_heads": 14, "num_key_value_heads": 2, "hidden_size": 896,
    "sliding_window": 32768, "use_sliding_window": false})");
  ASSERT_TRUE(qwen.ok()) << qwen.status();
  EXPECT_EQ(qwen->layers[2].window, 0u);
}

TEST(ConfigShapeTest, AnEncoderDecoderHasTwoKinds) {
  const auto shape = Read(kT5Small);
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(BytesOfToken(shape->layers), 6u * 2 * 512 * 2);
  EXPECT_EQ(BytesOfToken(shape->cross_layers), BytesOfToken(shape->layers));
}

TEST(ConfigShapeTest, WhatItDoesNotKnowItNames) {
  const auto unknown = Read(R"({"model_type": "nothing", "num_hidden_layers": 64})");
  EXPECT_EQ(unknown.status().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(Message(unknown.status()), HasSubstr("'model_type' is \"nothing\""));
  EXPECT_THAT(Message(unknown.status()), HasSubstr("deepseek_v3"));

  const auto linear = Read(R"({"model_type": "qwen3", "num_hidden_layers": 2, "head_dim": 128,
    "num_attention_heads": 8, "layer_types": ["linear_attention", "full_attention"]})");
  EXPECT_EQ(linear.status().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(Message(linear.status()), HasSubstr("layer 0 has the type \"linear_attention\""));
}

TEST(ConfigShapeTest, ModelsWithStatesAreRefusedByTheKindOfTheirLayers) {
  for (const auto& [type, layers] : {std::pair("mamba", "layers of Mamba,"),
                                     {"jamba", "layers of Mamba,"},
                                     {"qwen3_next", "layers of linear attention,"},
                                     {"lfm2", "layers of convolutions,"}}) {
    const auto shape = Read(fmt::format(R"({{"model_type": "{}"}})", type));
    EXPECT_EQ(shape.status().code(), StatusCode::kUnimplemented);
    EXPECT_THAT(Message(shape.status()), HasSubstr(layers)) << type;
  }
}

TEST(ConfigShapeTest, AModelOfTextAndPicturesNeedsItsTextConfig) {
  const auto shape = Read(R"({"model_type": "gemma3", "num_hidden_layers": 34})");
  EXPECT_EQ(shape.status().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(Message(shape.status()),
              HasSubstr("'text_config' with the 'model_type' \"gemma3_text\""));
}

TEST(ConfigShapeTest, WrongFieldsAreNamed) {
  const struct {
    const char* text;
    const char* expected;
  } kCases[] = {
      {"[]", "is an array of 0, expected a JSON object"},
      {"{", "is no JSON, expected a GGUF file or a config.json"},
      {"{}", "field 'model_type' is missing"},
      {R"({"model_type": "llama"})", "field 'num_hidden_layers' is missing"},
      {R"({"model_type": "llama", "num_hidden_layers": "32"})",
       "field 'num_hidden_layers' is \"32\", expected a whole number, 1 to 4096"},
      {R"({"model_type": "llama", "num_hidden_layers": 18446744073709551615})",
       "is 18446744073709551615"},
      {R"({"model_type": "llama", "num_hidden_layers": -1})", "is -1, expected"},
      {R"({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 3,
           "hidden_size": 64})",
       "field 'hidden_size' is 64, expected a multiple of the 3 heads"},
      {R"({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 8, "head_dim": 64})",
       "field 'num_key_value_heads' is 8, expected a whole number, 1 to 4"},
      {R"({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 8,
           "num_key_value_heads": 3, "head_dim": 64})",
       "field 'num_key_value_heads' is 3, expected a divisor of the 8 query heads"},
      {R"({"model_type": "falcon", "num_hidden_layers": 2, "num_attention_heads": 8,
           "new_decoder_architecture": true, "num_kv_heads": 5, "hidden_size": 512})",
       "field 'num_kv_heads' is 5, expected a divisor of the 8 query heads"},
      {R"({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4,
           "head_dim": 64, "layer_types": [[["x"]]]})",
       "field 'layer_types' is an array of 1"},
      {R"({"model_type": "llama", "dtype": "int3"})", "field 'dtype' is \"int3\""},
  };
  for (const auto& test : kCases) {
    const auto shape = Read(test.text);
    ASSERT_FALSE(shape.ok()) << test.text;
    EXPECT_THAT(Message(shape.status()), HasSubstr(test.expected));
  }
}

TEST(ConfigShapeTest, DeepNestingIsNoDanger) {
  const std::string deep = R"({"model_type": "llama", "num_hidden_layers": )" +
                           std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_THAT(Message(Read(deep).status()), HasSubstr("is an array of 1"));
}

}  // namespace
}  // namespace cairn::cli::size
