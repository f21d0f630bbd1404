#include "common/recipe/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cairn/common/part.h"
#include "kernels/codecs/registry.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

std::string Canonical(std::string_view text) {
  const Result<std::string> got = CanonicalRecipe(text);
  return got.ok() ? *got : "error: " + std::string(Message(got.status()));
}

TEST(RecipeTest, CanonicalFormNamesEveryParameter) {
  EXPECT_EQ(Canonical("raw"), "raw");
  EXPECT_EQ(Canonical("int8"), "int8:group=64,sink=0");
  EXPECT_EQ(Canonical("int8:sink=1,group=32"), "int8:group=32,sink=1");
  EXPECT_EQ(Canonical("int4"), "int4:group=64,sink=1");
  EXPECT_EQ(Canonical("turbo"), "turbo:bits=4,sink=1");
  EXPECT_EQ(Canonical("turbo:bits=3,v=3"), "turbo:bits=3,sink=1");
  EXPECT_EQ(Canonical("turbo:v=2"), "turbo:bits=4,v=2,sink=1");
  EXPECT_EQ(Canonical("host=int8>disk=turbo:bits=4"),
            "host=int8:group=64,sink=0>disk=turbo:bits=4,sink=1");
  EXPECT_EQ(Canonical("device=raw>host=int8>disk=int4"),
            "device=raw>host=int8:group=64,sink=0>disk=int4:group=64,sink=1");
}

TEST(RecipeTest, ReadersKnowEveryCodecThatRecipesName) {
  for (const codecs::CodecInfo& info : codecs::AllCodecs()) {
    EXPECT_LE(info.id, static_cast<uint16_t>(format::kLastCodec)) << info.name;
  }
}

TEST(RecipeTest, CanonicalFormIsItsOwnCanonicalForm) {
  for (const codecs::CodecInfo& info : codecs::AllCodecs()) {
    const std::string once = Canonical(info.name);
    EXPECT_EQ(Canonical(once), once);
  }
}

TEST(RecipeTest, EveryCodecOfEveryAllowedValueCanBeMade) {
  for (const codecs::CodecInfo& info : codecs::AllCodecs()) {
    for (const codecs::ParameterInfo& parameter : info.parameters) {
      for (const int64_t value : parameter.allowed) {
        const auto recipe = ParseRecipe(std::string(info.name) + ":" + std::string(parameter.name) +
                                        "=" + std::to_string(value));
        ASSERT_TRUE(recipe.ok()) << Message(recipe.status());
        EXPECT_NE(recipe->rungs[0].codec.Make(), nullptr);
      }
    }
    const auto recipe = ParseRecipe(info.name);
    ASSERT_TRUE(recipe.ok());
    ASSERT_NE(recipe->rungs[0].codec.Make(), nullptr);
    EXPECT_EQ(recipe->rungs[0].codec.Make()->name(), info.name);
    EXPECT_EQ(recipe->Lossy(), info.name != "raw");
  }
}

TEST(RecipeTest, LadderGivesEachTierItsRung) {
  const Recipe ladder = *ParseRecipe("host=int8>disk=int4");
  EXPECT_TRUE(ladder.IsLadder());
  EXPECT_EQ(ladder.CodecOf(TierKind::kDevice).info->name, "int8");
  EXPECT_EQ(ladder.CodecOf(TierKind::kHost).info->name, "int8");
  EXPECT_EQ(ladder.CodecOf(TierKind::kDisk).info->name, "int4");
  const Recipe one = *ParseRecipe("turbo");
  EXPECT_FALSE(one.IsLadder());
  EXPECT_EQ(one.CodecOf(TierKind::kDisk).info->name, "turbo");
}

TEST(RecipeTest, ErrorsSayWhatExists) {
  EXPECT_THAT(Canonical(""), HasSubstr("expected a codec: raw, int8, int4, turbo"));
  EXPECT_THAT(Canonical("int5"), HasSubstr("got 'int5', expected one of raw, int8"));
  EXPECT_THAT(Canonical("Int8"), HasSubstr("got 'Int8'"));
  EXPECT_THAT(Canonical("int8 "), HasSubstr("got 'int8 '"));
  EXPECT_THAT(Canonical("int8:grp=64"),
              HasSubstr("got parameter 'grp', expected one of: group in {16, 32, 64, 128}; sink"));
  EXPECT_THAT(Canonical("raw:sink=1"), HasSubstr("expected one of: none"));
  EXPECT_THAT(Canonical("int8:group=48"), HasSubstr("got '48', expected one of 16, 32, 64, 128"));
  for (const char* bad : {"int8:", "int8:group", "int8:group=", "int8:group=64x", "int8:group=-64",
                          "int8:group=99999999999999999999", "int8:group=64,", "int8,"}) {
    EXPECT_THAT(Canonical(bad), HasSubstr("expected one of")) << bad;
  }
  EXPECT_THAT(Canonical("int8:group=64,group=64"), HasSubstr("given twice"));
}

TEST(RecipeTest, ASelectionStandsBeforeTheCodec) {
  EXPECT_EQ(Canonical("streaming:keep=0.4+raw"), "streaming:keep=0.4,sinks=4+raw");
  EXPECT_EQ(Canonical("streaming:sinks=0,keep=0.400+turbo"),
            "streaming:keep=0.4,sinks=0+turbo:bits=4,sink=1");
  EXPECT_EQ(Canonical("random:keep=1+int8"), "random:keep=1,sink=1,seed=1+int8:group=64,sink=0");
  EXPECT_EQ(Canonical("streaming:keep=1.0+raw"), Canonical("streaming:keep=1+raw"));
  EXPECT_EQ(Canonical("streaming:keep=0.001+raw"), "streaming:keep=0.001,sinks=4+raw");
  const Recipe recipe = *ParseRecipe("streaming:keep=0.25,sinks=2+raw");
  ASSERT_TRUE(recipe.selection.has_value());
  EXPECT_EQ(recipe.selection->info->name, "streaming");
  EXPECT_THAT(recipe.selection->values, ::testing::ElementsAre(250, 2));
  EXPECT_TRUE(recipe.Lossy()) << "the codec is raw, but rows are dropped";
  EXPECT_FALSE(ParseRecipe("raw")->selection.has_value());
}

TEST(RecipeTest, EverySelectionHasItsOwnCanonicalForm) {
  for (const selections::SelectionInfo& info : selections::AllSelections()) {
    std::string text = std::string(info.name) + ":keep=0.5";
    for (const selections::ParameterInfo& p : info.parameters) {
      if (p.kind == selections::ParameterKind::kCalibration) {
        text += fmt::format(",{}=00112233aabbccdd", p.name);
      }
    }
    const std::string once = Canonical(text + "+raw");
    EXPECT_EQ(once.find("error"), std::string::npos) << once;
    EXPECT_EQ(Canonical(once), once);
  }
}

TEST(RecipeTest, APresetIsItsSelectionWithOtherFallbacks) {
  EXPECT_EQ(Canonical("chunkkv-paper:keep=0.5+raw"),
            "chunkkv:keep=0.5,sink=1,window=32,pool=2,chunk=10,reuse=2,chunked=1+raw");
  EXPECT_EQ(Canonical("chunkkv-paper:keep=0.5,chunk=5+raw"),
            Canonical("chunkkv:keep=0.5,window=32,chunk=5,reuse=2+raw"))
      << "what is given goes before the preset";
  EXPECT_EQ(Canonical("snapkv-paper:keep=0.5+raw"),
            Canonical("snapkv:keep=0.5,window=32,pool=3,maxpool=1+raw"));
  EXPECT_EQ(Canonical("ada-snapkv-paper:keep=0.5+raw"),
            Canonical("ada-snapkv:keep=0.5,window=32,pool=3,maxpool=2,mix=1+raw"));
  EXPECT_THAT(Canonical("chunkkv-paper+raw"), HasSubstr("parameter 'keep' is missing"));
  EXPECT_THAT(Canonical("chunkkv-paper:keep=0.5"),
              HasSubstr("got the selection 'chunkkv-paper', expected 'chunkkv-paper:...+CODEC'"));
  for (const selections::SelectionInfo& info : selections::AllSelections()) {
    for (const selections::Preset& preset : info.presets) {
      EXPECT_EQ(selections::FindSelection(preset.name), nullptr) << preset.name;
      for (const auto& value : preset.values) {
        const auto at = std::find_if(info.parameters.begin(), info.parameters.end(),
                                     [&](const auto& p) { return p.name == value.parameter; });
        ASSERT_NE(at, info.parameters.end()) << preset.name << " " << value.parameter;
        EXPECT_GE(value.value, at->least);
        EXPECT_LE(value.value, at->most);
      }
    }
  }
}

TEST(RecipeTest, SelectionErrorsSayWhatExists) {
  EXPECT_THAT(Canonical("nosuch:keep=0.4+raw"),
              HasSubstr("selection: got 'nosuch', expected one of streaming"));
  EXPECT_THAT(Canonical("streaming+raw"), HasSubstr("parameter 'keep' is missing, expected 0.001 "
                                                    "to 1 with at most 3 decimals"));
  EXPECT_THAT(Canonical("streaming:keep=0.4,grp=1+raw"),
              HasSubstr("got parameter 'grp', expected one of: keep from 0.001 to 1 with at most 3 "
                        "decimals; sinks from 0 to 64"));
  for (const char* bad : {"0", "0.0", "1.1", "2", "-0.4", "0.4x", ".4", "0.", "", "0.4000",
                          "0.0004", "1e-1", "0,4", "99999999999999999999"}) {
    EXPECT_THAT(Canonical(std::string("streaming:keep=") + bad + "+raw"), HasSubstr("expected"))
        << bad;
  }
  EXPECT_THAT(Canonical("streaming:keep=0.4,keep=0.4+raw"), HasSubstr("given twice"));
  EXPECT_THAT(Canonical("streaming:keep=0.4,sinks=1.5+raw"), HasSubstr("expected 0 to 64"));
  EXPECT_THAT(Canonical("streaming:keep=0.4+"), HasSubstr("codec: got ''"));
  EXPECT_THAT(Canonical("streaming:keep=0.4"),
              HasSubstr("got the selection 'streaming', expected 'streaming:...+CODEC'"));
  EXPECT_THAT(Canonical("streaming:keep=0.4+streaming:keep=0.4+raw"), HasSubstr("codec: got"));
}

TEST(RecipeTest, ACalibrationIsNamedByTheFirstDigitsOfItsDigest) {
  EXPECT_EQ(Canonical("razor:heads=f0112233aabbccdd,keep=0.4+raw"),
            "razor:keep=0.4,heads=f0112233aabbccdd,sinks=4,recent=128+raw");
  EXPECT_EQ(Canonical("duo:keep=0.4,heads=0000000000000000,recent=64+int8"),
            "duo:keep=0.4,heads=0000000000000000,sinks=4,recent=64+int8:group=64,sink=0");
  const Recipe recipe = *ParseRecipe("duo:keep=0.4,heads=f0112233aabbccdd+raw");
  EXPECT_EQ(selections::CalibrationOf(*recipe.selection->info, recipe.selection->values),
            0xf0112233aabbccdd);
  const Recipe other = *ParseRecipe("streaming:keep=0.4+raw");
  EXPECT_EQ(selections::CalibrationOf(*other.selection->info, other.selection->values),
            std::nullopt);
  EXPECT_THAT(
      Canonical("duo:keep=0.4+raw"),
      HasSubstr("parameter 'heads' is missing, expected the first 16 hexadecimal digits of a "
                "calibration file's SHA-256"));
  for (const char* bad : {"", "0", "f0112233aabbccd", "f0112233aabbccdd0", "F0112233AABBCCDD",
                          "0xf0112233aabbcc", "f0112233aabbccd ", "-0112233aabbccdd", "0.4"}) {
    EXPECT_THAT(Canonical(std::string("duo:keep=0.4,heads=") + bad + "+raw"),
                HasSubstr("selection 'duo', parameter 'heads': got '" + std::string(bad) +
                          "', expected the first 16 hexadecimal digits"))
        << bad;
  }
  EXPECT_THAT(
      Canonical("duo:keep=0.4,grp=1+raw"),
      HasSubstr("heads: the first 16 hexadecimal digits of a calibration file's SHA-256; sinks "
                "from 0 to 64"));
}

TEST(RecipeTest, ASelectionInALadderIsNotThere) {
  for (const char* text :
       {"streaming:keep=0.4+host=int8>disk=int4", "host=streaming:keep=0.4+int8>disk=int4",
        "host=int8>disk=streaming:keep=0.4+int4"}) {
    const auto got = ParseRecipe(text);
    EXPECT_EQ(got.status().code(), StatusCode::kUnimplemented) << text;
    EXPECT_THAT(std::string(Message(got.status())),
                HasSubstr("a selection of tokens and a ladder"));
  }
}

TEST(RecipeTest, LaddersOutOfOrderAreRefused) {
  EXPECT_THAT(Canonical("disk=int4>host=int8"), HasSubstr("expected the order device, host, disk"));
  EXPECT_THAT(Canonical("host=int4>host=int8"), HasSubstr("expected the order"));
  EXPECT_THAT(Canonical("host=int8"), HasSubstr("got one rung"));
  EXPECT_THAT(Canonical("host=int8>int4"), HasSubstr("got rung 'int4', expected TIER=CODEC"));
  EXPECT_THAT(Canonical("tape=int8>disk=int4"), HasSubstr("got 'tape'"));
  EXPECT_THAT(Canonical("host=int8>"), HasSubstr("got rung ''"));
}

}  // namespace
}  // namespace cairn
