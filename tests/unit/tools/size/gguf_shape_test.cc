#include "tools/cairn/size/gguf_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/model/gguf_builder.h"

namespace cairn::cli::size {
namespace {

using model::GgufValueType;
using model::testing::GgufBuilder;
using testing::HasSubstr;

// The keys that every model has, under its architecture.
GgufBuilder Model(const std::string& name, uint32_t layers) {
  GgufBuilder builder;
  builder.String("general.architecture", name)
      .U32(name + ".block_count", layers)
      .U32(name + ".embedding_length", 512)
      .U32(name + ".context_length", 4096);
  return builder;
}

Result<ModelShape> Read(const GgufBuilder& builder) {
  const auto bytes = builder.Build();
  CAIRN_ASSIGN_OR_RETURN(const auto file, model::GgufFile::ParseMetadata(bytes, "m.gguf"));
  return ShapeOfGguf(*file, DType::kF16);
}

TEST(GgufShapeTest, HeadsAreThoseOfTheFile) {
  const auto gqa = Read(Model("llama", 3)
                            .U32("llama.attention.head_count", 8)
                            .U32("llama.attention.head_count_kv", 2));
  ASSERT_TRUE(gqa.ok()) << gqa.status();
  EXPECT_EQ(gqa->attention, Attention::kGqa);
  EXPECT_EQ(gqa->context_tokens, 4096u);
  EXPECT_EQ(BytesOfToken(gqa->layers), 3u * 2 * 2 * 64 * 2);
  const auto mha = Read(Model("gpt2", 3).U32("gpt2.attention.head_count", 8));
  ASSERT_TRUE(mha.ok()) << mha.status();
  EXPECT_EQ(mha->attention, Attention::kMha);
  EXPECT_EQ(BytesOfToken(mha->layers), 3u * 2 * 512 * 2);
}

TEST(GgufShapeTest, LayersMayDiffer) {
  const auto shape = Read(Model("llama", 3)
                              .U32("llama.attention.head_count", 8)
                              .Ints("llama.attention.head_count_kv", {2, 0, 4}));
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_TRUE(shape->layers[1].planes.empty());
  EXPECT_EQ(BytesOfToken(shape->layers), (2u + 4) * 2 * 64 * 2);
}

TEST(GgufShapeTest, LatentAttention) {
  const auto shape = Read(Model("deepseek2", 4)
                              .U32("deepseek2.attention.head_count", 16)
                              .U32("deepseek2.attention.kv_lora_rank", 512)
                              .U32("deepseek2.rope.dimension_count", 64));
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->attention, Attention::kMla);
  EXPECT_EQ(BytesOfToken(shape->layers), 4u * 576 * 2);
}

TEST(GgufShapeTest, SharedLayersAndWindows) {
  const auto shape =
      Read(Model("gemma3n", 4)
               .U32("gemma3n.attention.head_count", 8)
               .U32("gemma3n.attention.head_count_kv", 2)
               .U32("gemma3n.attention.shared_kv_layers", 2)
               .U32("gemma3n.attention.sliding_window", 512)
               .Bools("gemma3n.attention.sliding_window_pattern", {true, false, true, false}));
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->layers[0].window, 512u);
  EXPECT_EQ(shape->layers[1].window, 0u);
  EXPECT_TRUE(shape->layers[2].planes.empty());
  // Without a pattern in the file: that of the architecture.
  const auto gemma2 = Read(Model("gemma2", 4)
                               .U32("gemma2.attention.head_count", 8)
                               .U32("gemma2.attention.sliding_window", 4096));
  ASSERT_TRUE(gemma2.ok()) << gemma2.status();
  EXPECT_EQ(gemma2->layers[2].window, 4096u);
  EXPECT_EQ(gemma2->layers[3].window, 0u);
}

// Sizes need no weights, so those of types that the worker cannot compute with are no error.
TEST(GgufShapeTest, WeightsOfAnyTypeAreNoError) {
  auto builder = Model("llama", 1).U32("llama.attention.head_count", 8);
  builder.RawTensor("blk.0.attn_q.weight", {256, 256}, 23, 0);  // IQ4_XS.
  EXPECT_TRUE(Read(builder).ok());
}

TEST(GgufShapeTest, WhatIsWrongIsNamed) {
  const auto state = Read(Model("rwkv6", 1));
  EXPECT_EQ(state.status().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(Message(state.status()), HasSubstr("'rwkv6': such a model has layers of linear"));
  const auto unknown = Read(Model("nothing", 1));
  EXPECT_EQ(unknown.status().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(Message(unknown.status()),
              HasSubstr("general.architecture is 'nothing', which is not known"));
  EXPECT_THAT(Message(Read(Model("llama", 1)).status()),
              HasSubstr("'llama.attention.head_count' is missing"));
  EXPECT_THAT(Message(Read(Model("llama", 0)).status()),
              HasSubstr("'llama.block_count' is 0, expected 1 to 4096"));
  EXPECT_THAT(Message(Read(Model("llama", 2)
                               .U32("llama.attention.head_count", 8)
                               .Ints("llama.attention.head_count_kv", {2}))
                          .status()),
              HasSubstr("is an array of 1, expected a number, or one for each of the 2 layers"));
  EXPECT_THAT(Message(Read(Model("llama", 2)
                               .U32("llama.attention.head_count", 8)
                               .Ints("llama.attention.head_count_kv", {0, 0}))
                          .status()),
              HasSubstr("expected a layer with KV"));
  EXPECT_THAT(Message(Read(Model("llama", 2)
                               .U32("llama.attention.head_count", 8)
                               .Ints("llama.attention.head_count_kv", {2, 3}))
                          .status()),
              HasSubstr("'llama.attention.head_count_kv' is 3 in layer 1, expected a divisor of "
                        "its 8 query heads"));
  EXPECT_THAT(Message(Read(Model("llama", 2)
                               .U32("llama.attention.head_count", 8)
                               .U32("llama.attention.head_count_kv", 16))
                          .status()),
              HasSubstr("is 16 in layer 0"));
}

}  // namespace
}  // namespace cairn::cli::size
