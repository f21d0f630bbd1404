#include "tools/cairn/size/sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/cairn/size/report.h"

namespace cairn::cli::size {
namespace {

using testing::HasSubstr;
using testing::Not;

std::vector<LayerShape> Layers(uint32_t count, std::vector<Plane> planes) {
  return std::vector<LayerShape>(count, {.planes = std::move(planes), .window = 0});
}

NativeLayout Gqa(DType dtype = DType::kF16) {
  return LayoutOf(Layers(30, KeysAndValues(3, 64, 64, dtype)));
}

TEST(SizesTest, RawIsThePlanesAndAHeader) {
  const auto size = SizeOf(Gqa(), 64, "raw");
  ASSERT_TRUE(size.ok()) << size.status();
  EXPECT_EQ(size->host.certainty, Certainty::kExact);
  EXPECT_EQ(size->host.header_bytes, 832u);  // 64 + 24 x 30, up to a multiple of 64.
  EXPECT_EQ(size->host.bytes, 832u + 30u * 2 * 3 * 64 * 64 * 2);
  EXPECT_EQ(size->HostRoom(), 1478656u);  // Whole pages.
  EXPECT_EQ(size->DiskRoom(), size->HostRoom());
}

TEST(SizesTest, CodecsTakeTheBitsThatTheirPageSays) {
  const double raw = static_cast<double>(SizeOf(Gqa(), 64, "raw")->host.bytes);
  for (const auto& [recipe, bits] :
       {std::pair("int8", 8.25), {"int4", 4.5}, {"turbo:bits=4", 4.25}, {"turbo:bits=3", 3.25}}) {
    const auto size = SizeOf(Gqa(), 64, recipe);
    ASSERT_TRUE(size.ok()) << size.status();
    EXPECT_EQ(size->host.certainty, Certainty::kExact) << recipe;
    EXPECT_NEAR(16 * static_cast<double>(size->host.bytes) / raw, bits, 0.02) << recipe;
  }
}

TEST(SizesTest, ALadderHasTwoSizes) {
  const auto size = SizeOf(Gqa(), 64, "host=int8>disk=turbo:bits=4");
  ASSERT_TRUE(size.ok()) << size.status();
  EXPECT_EQ(size->host.bytes, SizeOf(Gqa(), 64, "int8")->host.bytes);
  EXPECT_EQ(size->disk.bytes, SizeOf(Gqa(), 64, "turbo:bits=4")->host.bytes);
}

TEST(SizesTest, WhatDependsOnTheNumbersIsEstimated) {
  const auto cachegen = SizeOf(Gqa(), 64, "cachegen");
  ASSERT_TRUE(cachegen.ok()) << cachegen.status();
  EXPECT_EQ(cachegen->host.certainty, Certainty::kEstimated);
  EXPECT_LT(cachegen->host.bytes, SizeOf(Gqa(), 64, "int8")->host.bytes);
  const auto half = SizeOf(Gqa(), 64, "streaming:keep=0.5+int8");
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_EQ(half->host.certainty, Certainty::kEstimated);
  const auto all = static_cast<double>(SizeOf(Gqa(), 64, "int8")->host.bytes);
  EXPECT_NEAR(static_cast<double>(half->host.bytes) / all, 0.5, 0.01);
}

TEST(SizesTest, RefusalsNameThePlane) {
  const NativeLayout mla = LayoutOf(Layers(2, LatentPlanes(512, 64, DType::kF16)));
  EXPECT_TRUE(SizeOf(mla, 64, "raw").ok());
  EXPECT_THAT(Message(SizeOf(mla, 64, "int8").status()), HasSubstr("plane 'latent'"));
  EXPECT_THAT(Message(SizeOf(Gqa(DType::kBF16), 64, "int8").status()),
              HasSubstr("plane 'k' is bf16"));
  EXPECT_FALSE(SizeOf(Gqa(), 64, "zip").ok());
}

TEST(SizesTest, BlocksDoNotSpanSegments) {
  constexpr uint64_t kSegment = 64 << 20;
  EXPECT_EQ(BlocksInHost(kSegment, 1 << 20), 64u);
  EXPECT_EQ(BlocksInHost(2 * kSegment, 40 << 20), 2u);
  EXPECT_EQ(BlocksInHost(kSegment + (10 << 20), 1 << 20), 74u);
  EXPECT_EQ(BlocksInHost(100, 4096), 0u);
}

TEST(SizeReportTest, SaysTheSameInBothForms) {
  ModelShape shape{.architecture = "llama",
                   .attention = Attention::kGqa,
                   .context_tokens = 8192,
                   .layers = Layers(30, KeysAndValues(3, 64, 64, DType::kF16)),
                   .cross_layers = {}};
  shape.layers[0].window = 512;
  const Report report = MakeReport(std::move(shape), {.block_tokens = 64,
                                                      .recipes = {"raw", "int8", "fp9"},
                                                      .context_tokens = 0,
                                                      .host_bytes = 64 << 20,
                                                      .disk_bytes = 1ull << 30});
  const Json json = ToJson(report);
  const Json& raw = json["kv"][0]["recipes"][0];
  EXPECT_EQ(raw["block_bytes"], 1475392);
  EXPECT_EQ(raw["context_blocks"], 128);
  EXPECT_EQ(raw["context_bytes"], 128 * 1478656);
  EXPECT_EQ(raw["host_blocks"], 45);
  EXPECT_EQ(raw["host_tokens"], 45 * 64);
  EXPECT_EQ(raw["host_contexts"], 0);
  EXPECT_EQ(raw["disk_blocks"], 726);
  EXPECT_EQ(raw["disk_contexts"], 5);
  EXPECT_EQ(json["kv"][0]["layers_with_window"], 1);
  EXPECT_THAT(json["kv"][0]["recipes"][2]["refused"].get<std::string>(), HasSubstr("fp9"));
  EXPECT_FALSE(report.AllRefused());
  const std::string text = ToText(report, {.colors = false, .unicode = false});
  EXPECT_THAT(text, HasSubstr("30 x {k: 3 x 64 f16, v: 3 x 64 f16}"));
  EXPECT_THAT(text, HasSubstr("1 layers have a window"));
  EXPECT_THAT(text, HasSubstr("refused"));
  EXPECT_THAT(text, testing::ContainsRegex("45 [|] +2,880 [|] +0 [|] +726 [|] +46,464 [|] +5 "));
  EXPECT_THAT(text, Not(HasSubstr("No context is given")));
}

TEST(SizeReportTest, SaysWhichContextItTakesWhereNoneIsGiven) {
  const ModelShape shape{.architecture = "",
                         .attention = Attention::kGqa,
                         .context_tokens = 0,
                         .layers = Layers(2, KeysAndValues(2, 64, 64, DType::kF16)),
                         .cross_layers = {}};
  Question question;
  question.recipes = {"raw"};
  const Terminal plain{.colors = false, .unicode = false};
  EXPECT_THAT(ToText(MakeReport(shape, question), plain),
              HasSubstr("No context is given: 8,192 tokens are taken for one, --context"));
  question.context_tokens = 20;  // Shorter than a block.
  question.host_bytes = 64 << 20;
  const Report brief = MakeReport(shape, question);
  EXPECT_THAT(ToText(brief, plain), Not(HasSubstr("No context is given")));
  EXPECT_TRUE(ToJson(brief)["kv"][0]["recipes"][0]["host_contexts"].is_null());
}

// Most models' files say bf16, which no codec reads.
TEST(SizeReportTest, TellsHowToSeeWhatCodecsTakeOfBfloat16) {
  const auto text = [](std::vector<Plane> planes, std::vector<std::string> recipes) {
    const ModelShape shape{.architecture = "llama",
                           .attention = Attention::kGqa,
                           .context_tokens = 8192,
                           .layers = Layers(2, std::move(planes)),
                           .cross_layers = {}};
    Question question;
    question.recipes = std::move(recipes);
    return ToText(MakeReport(shape, question), {.colors = false, .unicode = false});
  };
  const std::vector<Plane> bfloats = KeysAndValues(2, 64, 64, DType::kBF16);
  EXPECT_THAT(text(bfloats, {"raw", "int8"}), HasSubstr("--dtype f16"));
  EXPECT_THAT(text(bfloats, {"raw"}), Not(HasSubstr("--dtype")));
  EXPECT_THAT(text(bfloats, {"zip"}), Not(HasSubstr("--dtype")));
  EXPECT_THAT(text(KeysAndValues(2, 80, 80, DType::kF16), {"int4"}), Not(HasSubstr("--dtype")));
  EXPECT_THAT(text(LatentPlanes(512, 64, DType::kBF16), {"int8"}), Not(HasSubstr("--dtype")));
}

}  // namespace
}  // namespace cairn::cli::size
