// The selection kernels on every instruction set: within rounding of the definition in double
// precision, and bit for bit the same as the portable ones.

#include <algorithm>
#include <limits>

#include "cairn/kernels/selection/selection_kernels.h"
#include "tests/conformance/selections/case.h"

namespace cairn::kernels {
namespace {

using selections::testing::Pages;
using selections::testing::ToHalf;
using testing::ExpectClose;
using testing::Guarded;
using testing::IsaName;
using testing::Scratch;

// Tokens, dimensions, block of tokens: whole tiles, parts of one, odd sizes, none.
struct Shape {
  int64_t tokens;
  int64_t dim;
  int64_t block;
};
const Shape kShapes[] = {{64, 64, 64},   {1, 64, 64},  {0, 64, 64},   {200, 64, 64},
                         {129, 128, 16}, {65, 80, 32}, {63, 96, 64},  {37, 32, 5},
                         {131, 48, 64},  {20, 37, 16}, {300, 64, 256}};

class SelectionKernelsTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!Supports(GetParam())) GTEST_SKIP() << "this machine has no " << Name(GetParam());
  }
  const SelectionKernels& cpu() const { return CpuSelectionKernels(GetParam()); }
  const SelectionKernels& portable() const { return CpuSelectionKernels(Isa::kPortable); }
  const SelectionKernels& reference() const { return ReferenceSelectionKernels(); }

  std::vector<float> Random(int64_t n, float spread = 1.0f) {
    std::normal_distribution<float> normal(0.0f, spread);
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = normal(rng_);
    return v;
  }
  std::unique_ptr<Pages> RandomPages(const Shape& s, int64_t heads = 2) {
    auto pages = std::make_unique<Pages>(s.tokens, heads, s.dim, s.block);
    std::normal_distribution<float> normal;
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t t = 0; t < s.tokens; ++t) {
        for (int64_t c = 0; c < s.dim; ++c) {
          pages->K(h, t)[c] = ToHalf(normal(rng_));
          pages->V(h, t)[c] = ToHalf(normal(rng_));
        }
      }
    }
    return pages;
  }

  // Runs `call(kernels, out)` with the definition, the portable kernels and this instruction set's.
  template <typename Call>
  void Compare(int64_t n, double relative, double absolute, const std::string& what, Call&& call,
               float initial = 0.0f) {
    Guarded<float> want(n, initial), plain(n, initial), got(n, initial);
    call(reference(), want.get());
    call(portable(), plain.get());
    call(cpu(), got.get());
    ExpectClose(want.span(), got.span(), relative, absolute, what);
    ASSERT_EQ(std::memcmp(plain.get(), got.get(), static_cast<size_t>(n) * sizeof(float)), 0)
        << what << ": not the portable kernel's numbers";
  }
  static std::string Label(const Shape& s) {
    return std::to_string(s.tokens) + " tokens of " + std::to_string(s.dim);
  }
  std::mt19937& rng() { return rng_; }

 private:
  std::mt19937 rng_{20241122};
};

TEST_P(SelectionKernelsTest, WindowAttentionIsCausalSoftmax) {
  for (const Shape& s : kShapes) {
    const auto pages = RandomPages(s);
    for (const int64_t rows : {int64_t{0}, int64_t{1}, int64_t{13}, s.tokens}) {
      if (rows > s.tokens) continue;
      // Windows that end before the keys do see none of those behind.
      for (const int64_t behind : {int64_t{0}, int64_t{3}}) {
        const int64_t first = s.tokens - rows - behind;
        if (first < 0) continue;
        const int64_t stride = s.tokens + 5;
        const std::vector<float> q = Random(rows * (s.dim + 3) + 1);
        Scratch scratch(SelectionScratchBytes(s.dim, 0));
        Compare(
            rows * stride, 2e-5, 1e-7, Label(s),
            [&](const SelectionKernels& k, float* out) {
              k.window_attention({{pages->kv(), false, 1, 0, s.tokens},
                                  q.data(),
                                  s.dim + 3,
                                  rows,
                                  first,
                                  0.125f,
                                  out,
                                  stride,
                                  scratch.get()});
            },
            -7.0f);
      }
    }
  }
}

TEST_P(SelectionKernelsTest, WindowAttentionSumsToOneAndEndsAtItsOwnRow) {
  const Shape s{150, 64, 64};
  const auto pages = RandomPages(s);
  const std::vector<float> q = Random(20 * 64);
  std::vector<float> out(20 * 150);
  Scratch scratch(SelectionScratchBytes(64, 0));
  cpu().window_attention({{pages->kv(), false, 0, 0, 150},
                          q.data(),
                          64,
                          20,
                          130,
                          0.125f,
                          out.data(),
                          150,
                          scratch.get()});
  for (int64_t r = 0; r < 20; ++r) {
    double sum = 0;
    for (int64_t j = 0; j < 150; ++j) {
      const float w = out[static_cast<size_t>(r * 150 + j)];
      sum += w;
      EXPECT_EQ(w > 0, j <= 130 + r) << "row " << r << ", key " << j;
    }
    EXPECT_NEAR(sum, 1.0, 1e-5);
  }
}

TEST_P(SelectionKernelsTest, RowsWithNumbersThatAreNotFiniteAreNan) {
  const Shape s{100, 64, 64};
  for (const uint16_t bad : {0x7c00, 0xfc00, 0x7e00}) {
    const auto pages = RandomPages(s);
    pages->K(0, 70)[9] = bad;
    const std::vector<float> q = Random(60 * 64);
    std::vector<float> out(60 * 100), weights(kAccumulatedRows * RoundedTokens(100));
    Scratch scratch(SelectionScratchBytes(64, 0));
    cpu().window_attention({{pages->kv(), false, 0, 0, 100},
                            q.data(),
                            64,
                            60,
                            40,
                            1.0f,
                            out.data(),
                            100,
                            scratch.get()});
    for (int64_t r = 0; r < 60; ++r) {
      EXPECT_EQ(std::isnan(out[static_cast<size_t>(r * 100)]), r >= 30) << "row " << r;
    }
    std::vector<float> sums(100);
    cpu().accumulate_attention({{pages->kv(), false, 0, 0, 100},
                                q.data(),
                                64,
                                60,
                                40,
                                1.0f,
                                sums.data(),
                                weights.data(),
                                scratch.get()});
    EXPECT_EQ(cpu().count_non_finite(sums.data(), 100), 100);
    cpu().reduce_rows({Reduction::kMax, out.data(), 60, 100, 100, sums.data()});
    EXPECT_EQ(cpu().count_non_finite(sums.data(), 100), 100);
  }
}

TEST_P(SelectionKernelsTest, AccumulatedAttentionIsTheSumWhateverTheCuts) {
  for (const Shape& s : kShapes) {
    const auto pages = RandomPages(s);
    const std::vector<float> q = Random(s.tokens * s.dim + 1);
    std::vector<float> weights(static_cast<size_t>(kAccumulatedRows * RoundedTokens(s.tokens) + 1));
    Scratch scratch(SelectionScratchBytes(s.dim, 0));
    const auto sum = [&](const SelectionKernels& k, int64_t cut, float* out) {
      for (int64_t at = 0; at < s.tokens; at += cut) {
        const int64_t rows = std::min(cut, s.tokens - at);
        k.accumulate_attention({{pages->kv(), false, 1, 0, at + rows},
                                q.data() + at * s.dim,
                                s.dim,
                                rows,
                                at,
                                0.125f,
                                out,
                                weights.data(),
                                scratch.get()});
      }
    };
    Compare(s.tokens, 1e-4, 1e-6, Label(s),
            [&](const SelectionKernels& k, float* out) { sum(k, 1000, out); });
    std::vector<float> whole(static_cast<size_t>(s.tokens));
    sum(cpu(), 1000, whole.data());
    for (const int64_t cut : {1, 7, 64}) {
      std::vector<float> cuts(static_cast<size_t>(s.tokens));
      sum(cpu(), cut, cuts.data());
      EXPECT_EQ(cuts, whole) << Label(s) << " in cuts of " << cut;
    }
  }
}

TEST_P(SelectionKernelsTest, RowsReduceToMeanMaximumAndVariance) {
  for (const int64_t cols : {0, 1, 15, 16, 100}) {
    for (const int64_t rows : {1, 2, 33}) {
      const std::vector<float> x = Random(rows * (cols + 3));
      for (const Reduction reduction : {Reduction::kMean, Reduction::kMax, Reduction::kVariance}) {
        Compare(cols, 1e-5, 1e-6, "cols " + std::to_string(cols),
                [&](const SelectionKernels& k, float* out) {
                  k.reduce_rows({reduction, x.data(), rows, cols, cols + 3, out});
                });
      }
    }
  }
}

TEST_P(SelectionKernelsTest, PoolingCountsZerosOutsideAndMaximaDoNot) {
  for (const int64_t n : {0, 1, 2, 5, 100}) {
    const std::vector<float> x = Random(n);
    for (const int64_t reach : {0, 1, 2, 8}) {
      for (const bool max : {false, true}) {
        Compare(n, 1e-5, 1e-6, "n " + std::to_string(n),
                [&](const SelectionKernels& k, float* out) {
                  k.pool({x.data(), out, n, reach, max});
                });
      }
    }
  }
  const float x[] = {3, -1, -2, -6};
  float y[4];
  cpu().pool({x, y, 4, 1, false});
  EXPECT_FLOAT_EQ(y[0], 2.0f / 3);
  EXPECT_FLOAT_EQ(y[3], -8.0f / 3);
  cpu().pool({x, y, 4, 1, true});
  EXPECT_EQ(y[0], 3.0f);
  EXPECT_EQ(y[3], -2.0f);
}

TEST_P(SelectionKernelsTest, ChunksHaveTheirMeanAndAPartItsOwn) {
  for (const int64_t n : {0, 1, 19, 20, 101}) {
    const std::vector<float> x = Random(n);
    for (const int64_t chunk : {1, 10, 20, 200}) {
      Compare((n + chunk - 1) / chunk, 1e-5, 1e-6, "n " + std::to_string(n),
              [&](const SelectionKernels& k, float* out) {
                k.chunk_means({x.data(), n, chunk, out});
              });
    }
  }
}

TEST_P(SelectionKernelsTest, EntropyAndSoftmax) {
  for (const int64_t n : {1, 5, 16, 77, 1000}) {
    std::vector<float> x = Random(n, 3.0f);
    Compare(n, 2e-5, 1e-7, "softmax", [&](const SelectionKernels& k, float* out) {
      std::copy(x.begin(), x.end(), out);
      k.softmax({out, n});
    });
    cpu().softmax({x.data(), n});
    x.back() = 0.0f;
    Compare(1, 2e-5, 1e-6, "entropy", [&](const SelectionKernels& k, float* out) {
      *out = k.entropy({x.data(), n});
    });
  }
  const std::vector<float> even(64, 1.0f / 64);
  EXPECT_NEAR(cpu().entropy({even.data(), 64}), std::log(64.0), 1e-5);
}

TEST_P(SelectionKernelsTest, ScoresOfSingleRowsMatchTheDefinition) {
  for (const Shape& s : kShapes) {
    const auto pages = RandomPages(s);
    Scratch scratch(SelectionScratchBytes(s.dim, std::max<int64_t>(s.dim, kProjectedRows)));
    // A range in the middle, as threads have.
    const int64_t begin = s.tokens / 3, end = s.tokens - s.tokens / 5;
    const TokenRows keys{pages->kv(), false, 1, begin, end};
    const TokenRows values{pages->kv(), true, 1, begin, end};
    const int64_t count = end - begin;
    for (const TokenRows& x : {keys, values}) {
      Compare(count, 1e-5, 1e-6, "norms " + Label(s), [&](const SelectionKernels& k, float* out) {
        k.row_norms({x, out, scratch.get()});
      });
    }
    std::vector<float> norms(static_cast<size_t>(count) + 1);
    reference().row_norms({keys, norms.data(), scratch.get()});
    Compare(
        s.dim, 1e-4, 1e-5, "units " + Label(s),
        [&](const SelectionKernels& k, float* out) {
          k.sum_unit_rows({keys, norms.data(), out});
        },
        0.5f);
    const std::vector<float> v = Random(s.dim);
    Compare(count, 1e-4, 1e-6, "cosines " + Label(s), [&](const SelectionKernels& k, float* out) {
      k.cosines({keys, norms.data(), v.data(), out, scratch.get()});
    });
    const std::vector<float> covariance = Random(s.dim * s.dim, 0.3f);
    Compare(count, 1e-4, 1e-4, "expected " + Label(s), [&](const SelectionKernels& k, float* out) {
      k.expected_logits({keys, v.data(), covariance.data(), 0.125f, out, scratch.get()});
    });
    for (const int64_t hidden : {int64_t{0}, int64_t{1}, int64_t{100}}) {
      const std::vector<float> w = Random(hidden * s.dim);
      Compare(
          count, 1e-4, 1e-5, "projected",
          [&](const SelectionKernels& k, float* out) {
            k.projected_norms({values, w.data(), hidden, out, scratch.get()});
          },
          2.0f);
    }
  }
}

TEST_P(SelectionKernelsTest, LagScoresCompareWithTheNextRows) {
  for (const Shape& s : kShapes) {
    if (s.tokens < 4) continue;
    const auto pages = RandomPages(s);
    const int64_t half = s.tokens / 2;
    // A channel that does not vary in the next rows.
    for (int64_t t = half; t < s.tokens; ++t) pages->V(0, t)[s.dim - 1] = ToHalf(0.5f);
    Scratch scratch(SelectionScratchBytes(s.dim, kLagScratchRows));
    for (const bool values : {false, true}) {
      Compare(half - 1, 1e-4, 1e-6, Label(s), [&](const SelectionKernels& k, float* out) {
        k.lag_scores({{pages->kv(), values, 0, 1, half},
                      {pages->kv(), values, 0, half, s.tokens},
                      out,
                      scratch.get()});
      });
    }
  }
}

TEST_P(SelectionKernelsTest, QueryMomentsAddUpWhateverTheCuts) {
  for (const int64_t dim : {16, 64, 128}) {
    const std::vector<float> q = Random(45 * (dim + 2));
    const auto moments = [&](const SelectionKernels& k, int64_t cut, float* out) {
      for (int64_t at = 0; at < 45; at += cut) {
        k.query_moments({q.data() + at * (dim + 2), dim + 2, std::min<int64_t>(cut, 45 - at), dim,
                         out, out + dim});
      }
    };
    Compare(dim * (dim + 1), 1e-4, 1e-4, "moments",
            [&](const SelectionKernels& k, float* out) { moments(k, 45, out); });
    std::vector<float> whole(static_cast<size_t>(dim * (dim + 1))), cuts(whole.size());
    moments(cpu(), 45, whole.data());
    moments(cpu(), 7, cuts.data());
    EXPECT_EQ(cuts, whole);
  }
}

TEST_P(SelectionKernelsTest, CountsNumbersThatAreNotFinite) {
  std::vector<float> x = Random(100);
  EXPECT_EQ(cpu().count_non_finite(x.data(), 100), 0);
  EXPECT_EQ(cpu().count_non_finite(x.data(), 0), 0);
  x[0] = NAN;
  x[50] = -std::numeric_limits<float>::infinity();
  x[99] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(cpu().count_non_finite(x.data(), 100), 3);
}

TEST_P(SelectionKernelsTest, MarksAreTheDefinitionsExactly) {
  for (const int64_t n : {0, 1, 2, 100, 5000}) {
    for (const int kind : {0, 1, 2, 3}) {
      std::vector<float> scores = Random(n);
      for (float& x : scores) {
        if (kind == 1) x = std::round(x);  // Many ties, zeros of both signs among them.
        if (kind == 2) x = x > 0 ? 1.0f : -0.0f;
        if (kind == 3) x = std::ldexp(x, static_cast<int>(rng()() % 200) - 100);
      }
      std::vector<uint8_t> before(static_cast<size_t>(n));
      for (uint8_t& m : before) m = rng()() % 5 == 0 ? 1 : 0;
      for (const int64_t count : {int64_t{-3}, int64_t{0}, int64_t{1}, n / 3, n - 1, n, n + 10}) {
        Guarded<uint8_t> got(n);
        std::copy(before.begin(), before.end(), got.get());
        std::vector<uint8_t> want = before;
        cpu().mark_top({scores.data(), n, count, got.get()});
        reference().mark_top({scores.data(), n, count, want.data()});
        ASSERT_TRUE(std::equal(want.begin(), want.end(), got.get()))
            << n << " numbers, kind " << kind << ", count " << count;
      }
    }
  }
}

TEST_P(SelectionKernelsTest, EqualScoresGoByPosition) {
  const float scores[] = {1, 2, 2, -0.0f, 0.0f, 2, 1};
  uint8_t marks[7] = {};
  cpu().mark_top({scores, 7, 2, marks});
  EXPECT_EQ(std::vector<uint8_t>(marks, marks + 7), (std::vector<uint8_t>{0, 1, 1, 0, 0, 0, 0}));
  cpu().mark_top({scores, 7, 4, marks});
  EXPECT_EQ(std::vector<uint8_t>(marks, marks + 7), (std::vector<uint8_t>{1, 1, 1, 1, 0, 1, 1}));
}

TEST_P(SelectionKernelsTest, GathersRowsExactly) {
  for (const Shape& s : kShapes) {
    if (s.tokens == 0) continue;
    const auto pages = RandomPages(s);
    std::vector<int32_t> rows;
    for (int64_t t = 0; t < s.tokens; t += 1 + t % 3) rows.push_back(static_cast<int32_t>(t));
    const auto n = static_cast<int64_t>(rows.size());
    for (const bool values : {false, true}) {
      Guarded<uint16_t> got(n * s.dim), want(n * s.dim);
      const TokenRows x{pages->kv(), values, 1, 0, s.tokens};
      cpu().gather_rows({x, rows.data(), n, got.get()});
      reference().gather_rows({x, rows.data(), n, want.get()});
      EXPECT_TRUE(std::equal(want.span().begin(), want.span().end(), got.get())) << Label(s);
      EXPECT_EQ(got.get()[(n - 1) * s.dim], x.row(rows.back())[0]);
    }
  }
}

TEST_P(SelectionKernelsTest, TurnsKeysToOtherPositions) {
  const std::pair<int64_t, int64_t> shapes[] = {{64, 64}, {80, 64}, {64, 24}, {32, 0}};
  for (const auto& [dim, rope] : shapes) {
    const int64_t rows = 9, half = rope / 2;
    std::vector<float> cosine, sine;
    for (int64_t i = 0; i < rows * half; ++i) {
      cosine.push_back(std::cos(0.3f * static_cast<float>(i)));
      sine.push_back(std::sin(0.3f * static_cast<float>(i)));
    }
    const std::vector<float> x = Random(rows * dim);
    Guarded<uint16_t> got(rows * dim), want(rows * dim), plain(rows * dim);
    for (size_t i = 0; i < x.size(); ++i) {
      got.get()[i] = want.get()[i] = plain.get()[i] = ToHalf(x[i]);
    }
    cpu().turn_rows({got.get(), rows, dim, rope, cosine.data(), sine.data()});
    portable().turn_rows({plain.get(), rows, dim, rope, cosine.data(), sine.data()});
    reference().turn_rows({want.get(), rows, dim, rope, cosine.data(), sine.data()});
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(got.get()[i], plain.get()[i]);
      const float w = selections::testing::FromHalf(want.get()[i]);
      ASSERT_NEAR(selections::testing::FromHalf(got.get()[i]), w, 1e-3f * std::fabs(w) + 1e-6f);
      if (static_cast<int64_t>(i) % dim >= rope) {
        ASSERT_EQ(got.get()[i], ToHalf(x[i]));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SelectionKernelsTest,
                         ::testing::Values(Isa::kPortable, Isa::kAvx2, Isa::kAvx512), IsaName);

}  // namespace
}  // namespace cairn::kernels
