// The kept rows equal tests/data/selections: kvpress's presses, or definitions in torch, on the
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

// The attention of the captured text's later queries to the rows before them, in the layer that has
// all queries. The rows are a segment of their own.
class LaterAttention {
 public:
  LaterAttention() : segment_(Captured()) {
    if (segment_.layers.empty()) return;
    segment_.tokens = kRows;
    segment_.token_ids.resize(kRows);
    kernels::testing::Device host(*kernels::FindBackend("reference"));
    std::byte* const scratch = host.Scratch(kernels::SelectionScratchBytes(kDim, 0));
    paid_.resize(testing::kHeads, std::vector<double>(kRows));
    std::vector<float> weights(kRows);
    for (int64_t row = kRows; row < kTokens; ++row) {
      for (int64_t h = 0; h < kQueryHeads; ++h) {
        const float* q = segment_.queries[kFullLayer].data() + (row * kQueryHeads + h) * kDim;
        host.Run(&kernels::SelectionKernels::window_attention,
                 {{segment_.layers[kFullLayer]->kv(), false, h / 3, 0, kRows},
                  q,
                  kDim,
                  1,
                  kRows - 1,
                  0.125f,
                  weights.data(),
                  kRows,
                  scratch});
        std::vector<double>& paid = paid_[static_cast<size_t>(h / 3)];
        for (size_t t = 0; t < weights.size(); ++t) paid[t] += double{weights[t]};
      }
    }
  }

  // The share that goes to the rows that a selection keeps, in the mean; NaN if there is none.
  double Kept(const SelectionCase& test) const {
    KeptRows kept;
    if (paid_.empty() || !segment_.Run(*testing::Make(test), &kept)) return NAN;
    double mass = 0;
    for (int32_t head = 0; head < testing::kHeads; ++head) {
      for (int64_t t = 0; t < kRows; ++t) {
        if (!kept.kept(kFullLayer, head, t)) continue;
        mass += paid_[static_cast<size_t>(head)][static_cast<size_t>(t)];
      }
    }
    return mass / static_cast<double>((kTokens - kRows) * kQueryHeads);
  }

 private:
  static constexpr int64_t kRows = 448;

  TestSegment segment_;
  std::vector<std::vector<double>> paid_;  // By KV head: [row], the sum over queries.
};

TEST(SelectionQuality, ALotKeepsLessAttentionThanMethodsThatLook) {
  const LaterAttention attention;
  const double lot = attention.Kept({"random", {400, 1, 1}});
  ASSERT_GT(lot, 0.3) << "the first row alone gets much";
  for (const testing::SelectionCase& test : testing::AllCases()) {
    const auto selection = testing::Make(test);
    // Those that look at no query promise nothing; nor do layers that are cut or follow others.
    if (selection->FirstObserved(kTokens) == kTokens || test.name == "simlayer" ||
        test.name == "prefixkv") {
      continue;
    }
    if (test.name == "chunkkv" && test.values[5] > 1) continue;
    const double mass = attention.Kept(test);
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
