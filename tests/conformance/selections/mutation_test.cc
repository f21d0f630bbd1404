// Mistakes that leave plausible scores: each must keep other rows than the reference, so that the
// fixtures notice it.

#include "cairn/kernels/selection/selection_kernels.h"
#include "kernels/selections/methods/ada_criticalkv.h"
#include "kernels/selections/methods/h2o.h"
#include "kernels/selections/methods/snapkv.h"
#include "tests/conformance/selections/captured.h"

namespace cairn::selections {
namespace {

using kernels::SelectionKernels;
using testing::Captured;
using testing::Fixture;
using testing::TestSegment;

const Fixture kFixtures[] = {
#include "tests/data/selections/fixtures.inc"
};

const SelectionKernels& Right() { return kernels::CpuSelectionKernels(kernels::BestIsa()); }

// Differences of a method, with these kernels, from the first fixture of its name.
template <typename Method>
int64_t Differences(const SelectionKernels& kernels, const TestSegment& segment) {
  const SelectionInfo info = Method::Info();
  for (const Fixture& fixture : kFixtures) {
    if (fixture.name != info.name) continue;
    const auto selection = Method::Make(Values(info, fixture.values), kernels);
    KeptRows kept;
    if (!segment.Run(*selection, &kept)) return -1;
    const int64_t differ = testing::Differences(fixture, kept);
    return differ <= testing::MayDiffer(fixture) ? 0 : differ;
  }
  return -1;
}

class MutationTest : public ::testing::Test {
 protected:
  MutationTest() : segment_(Captured()), wrong_(Right()) {}
  void SetUp() override { ASSERT_FALSE(segment_.layers.empty()); }

  TestSegment segment_;
  SelectionKernels wrong_;
};

TEST_F(MutationTest, WithoutAMistakeNothingDiffers) {
  EXPECT_EQ(Differences<SnapKv>(wrong_, segment_), 0);
  EXPECT_EQ(Differences<H2o>(wrong_, segment_), 0);
  EXPECT_EQ(Differences<AdaCriticalKv>(wrong_, segment_), 0);
}

TEST_F(MutationTest, AWindowThatSeesItsFuture) {
  wrong_.window_attention = [](kernels::Stream& stream, const kernels::WindowAttentionArgs& a) {
    for (int64_t r = 0; r < a.rows; ++r) {
      kernels::WindowAttentionArgs one = a;
      one.q += r * a.q_stride;
      one.out += r * a.out_stride;
      one.rows = 1;
      one.first_row = a.keys.end - 1;
      Right().window_attention(stream, one);
    }
  };
  EXPECT_GT(Differences<SnapKv>(wrong_, segment_), 0);
}

TEST_F(MutationTest, AWindowOffByOne) {
  wrong_.window_attention = [](kernels::Stream& stream, const kernels::WindowAttentionArgs& a) {
    kernels::WindowAttentionArgs early = a;
    early.first_row -= 1;
    Right().window_attention(stream, early);
  };
  EXPECT_GT(Differences<SnapKv>(wrong_, segment_), 0);
}

TEST_F(MutationTest, QueriesOfTheRowBefore) {
  for (auto& layer : segment_.queries) {
    layer.erase(layer.begin(), layer.begin() + testing::kQueryHeads * testing::kDim);
    layer.resize(layer.size() + testing::kQueryHeads * testing::kDim);
  }
  EXPECT_GT(Differences<SnapKv>(wrong_, segment_), 0);
}

TEST_F(MutationTest, QueryHeadsInStridesInsteadOfNeighbours) {
  for (auto& layer : segment_.queries) {
    const std::vector<float> right = layer;
    for (size_t i = 0; i < layer.size(); ++i) {
      const size_t row = i / 576, head = i % 576 / 64, column = i % 64;
      layer[i] = right[row * 576 + (head % 3 * 3 + head / 3) * 64 + column];
    }
  }
  EXPECT_GT(Differences<SnapKv>(wrong_, segment_), 0);
}

TEST_F(MutationTest, NoScale) {
  wrong_.window_attention = [](kernels::Stream& stream, const kernels::WindowAttentionArgs& a) {
    kernels::WindowAttentionArgs plain = a;
    plain.scale = 1.0f;
    Right().window_attention(stream, plain);
  };
  EXPECT_GT(Differences<SnapKv>(wrong_, segment_), 0);
}

TEST_F(MutationTest, NoPooling) {
  wrong_.pool = [](kernels::Stream&, const kernels::PoolArgs& a) {
    std::copy(a.x, a.x + a.n, a.y);
  };
  EXPECT_GT(Differences<SnapKv>(wrong_, segment_), 0);
}

TEST_F(MutationTest, TheLargestOfTheGroupInsteadOfTheMean) {
  wrong_.reduce_rows = [](kernels::Stream& stream, const kernels::ReduceRowsArgs& a) {
    kernels::ReduceRowsArgs other = a;
    if (a.rows == 3) other.reduction = kernels::Reduction::kMax;
    Right().reduce_rows(stream, other);
  };
  EXPECT_GT(Differences<SnapKv>(wrong_, segment_), 0);
}

TEST_F(MutationTest, KeysInsteadOfValues) {
  wrong_.projected_norms = [](kernels::Stream& stream, const kernels::ProjectedNormsArgs& a) {
    kernels::ProjectedNormsArgs other = a;
    other.values.values = false;
    Right().projected_norms(stream, other);
  };
  EXPECT_GT(Differences<AdaCriticalKv>(wrong_, segment_), 0);
}

TEST_F(MutationTest, SumsThatForgetTheLastRowOfACut) {
  wrong_.accumulate_attention = [](kernels::Stream& stream,
                                   const kernels::AccumulateAttentionArgs& a) {
    kernels::AccumulateAttentionArgs less = a;
    less.rows -= 1;
    Right().accumulate_attention(stream, less);
  };
  EXPECT_GT(Differences<H2o>(wrong_, segment_), 0);
}

}  // namespace
}  // namespace cairn::selections
