// What is kept equals tests/data/selections: kvpress's presses, or definitions in torch, on the
// same keys, values and queries of a real model.

#include "cairn/kernels/selection/selection_kernels.h"
#include "tests/conformance/selections/captured.h"

namespace cairn::selections {
namespace {

using testing::Captured;
using testing::Fixture;
using testing::kDim;
using testing::kFullLayer;
using testing::kQueryHeads;
using testing::kTokens;
using testing::SelectionCase;
using testing::TestSegment;

const Fixture kFixtures[] = {
#include "tests/data/selections/fixtures.inc"
};

class SelectionFixturesTest : public ::testing::TestWithParam<Fixture> {};

TEST_P(SelectionFixturesTest, KeepsWhatTheReferenceKeeps) {
  const Fixture& fixture = GetParam();
  const HeadScores heads = testing::ScoresFor(testing::kLayers, testing::kHeads);
  const auto selection = MakeSelection(fixture.name, fixture.values, &heads);
  ASSERT_NE(selection, nullptr);
  const TestSegment segment = Captured();
  ASSERT_EQ(segment.layers.size(), static_cast<size_t>(testing::kLayers));
  KeptRows kept;
  ASSERT_TRUE(segment.Run(*selection, &kept));
  const int64_t differ = testing::Differences(fixture, kept);
  EXPECT_LE(differ, testing::MayDiffer(fixture));
  RecordProperty("differ", static_cast<int>(differ));
}

// Attention that the text's later queries pay to the kept rows of the captured layer, in the mean.
double AttentionKept(const SelectionCase& test) {
  constexpr int64_t kKept = 448;
  TestSegment segment = Captured();
  if (segment.layers.empty()) return NAN;
  segment.tokens = kKept;
  segment.token_ids.resize(kKept);
  KeptRows kept;
  if (!segment.Run(*testing::Make(test), &kept)) return NAN;
  kernels::testing::Device host(*kernels::FindBackend("reference"));
  std::byte* const scratch = host.Scratch(kernels::SelectionScratchBytes(kDim, 0));
  std::vector<float> weights(kKept);
  double mass = 0;
  for (int64_t row = kKept; row < kTokens; ++row) {
    for (int64_t h = 0; h < kQueryHeads; ++h) {
      const float* q = segment.queries[kFullLayer].data() + (row * kQueryHeads + h) * kDim;
      host.Run(&kernels::SelectionKernels::window_attention,
               {{segment.layers[kFullLayer]->kv(), false, h / 3, 0, kKept},
                q,
                kDim,
                1,
                kKept - 1,
                0.125f,
                weights.data(),
                kKept,
                scratch});
      for (int64_t t = 0; t < kKept; ++t) {
        const auto head = static_cast<int32_t>(h / 3);
        if (kept.kept(kFullLayer, head, t)) mass += double{weights[static_cast<size_t>(t)]};
      }
    }
  }
  return mass / static_cast<double>((kTokens - kKept) * kQueryHeads);
}

TEST(SelectionQuality, ALotKeepsLessAttentionThanMethodsThatLook) {
  const double lot = AttentionKept({"random", {400, 1, 1}});
  ASSERT_GT(lot, 0.3) << "the first row alone gets much";
  for (const testing::SelectionCase& test : testing::AllCases()) {
    const auto selection = testing::Make(test);
    // Those that look at no query promise nothing; nor do layers that are cut or follow others.
    if (selection->FirstObserved(kTokens) == kTokens || test.name == "simlayer" ||
        test.name == "prefixkv") {
      continue;
    }
    if (test.name == "chunkkv" && test.values[5] > 1) continue;
    const double mass = AttentionKept(test);
    RecordProperty(test.Label(), std::to_string(mass));
    EXPECT_GT(mass, lot + 0.08) << test.Label();
  }
}

std::string CaseName(const ::testing::TestParamInfo<Fixture>& test) {
  return testing::SelectionCase{test.param.name, test.param.values}.Label();
}

INSTANTIATE_TEST_SUITE_P(All, SelectionFixturesTest, ::testing::ValuesIn(kFixtures), CaseName);

}  // namespace
}  // namespace cairn::selections
