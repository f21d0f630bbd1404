// The selection kernels on every backend: within rounding of the definition in double precision,
// and bit for bit the same as the portable ones where they are not the definition themselves.

#include <algorithm>
#include <limits>

#include "cairn/kernels/selection/selection_kernels.h"
#include "tests/conformance/selections/case.h"

namespace cairn::kernels {
namespace {

using selections::testing::Pages;
using selections::testing::ToHalf;
using testing::BackendCaseName;
using testing::Device;
using testing::ExpectClose;
using testing::Guarded;

// Tokens, dimensions, block of tokens: whole tiles, parts of one, odd sizes, none.
struct Shape {
  int64_t tokens;
  int64_t dim;
  int64_t block;
};
const Shape kShapes[] = {{64, 64, 64},   {1, 64, 64},  {0, 64, 64},   {200, 64, 64},
                         {129, 128, 16}, {65, 80, 32}, {63, 96, 64},  {37, 32, 5},
                         {131, 48, 64},  {20, 37, 16}, {300, 64, 256}};

class SelectionKernelsTest : public testing::FamilyTest<&Backend::selections> {
 protected:
  SelectionKernelsTest() : portable_(*FindBackend("portable")) {}

  std::unique_ptr<Pages> RandomPages(const Shape& s, int64_t heads = 2) {
    auto pages = std::make_unique<Pages>(s.tokens, heads, s.dim, s.block);
    std::normal_distribution<float> normal;
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t t = 0; t < s.tokens; ++t) {
        for (int64_t c = 0; c < s.dim; ++c) {
          pages->K(h, t)[c] = ToHalf(normal(rng()));
          pages->V(h, t)[c] = ToHalf(normal(rng()));
        }
      }
    }
    return pages;
  }

  // The numbers that `call(device, out)` writes to an output of `n` numbers.
  template <typename Call>
  static std::vector<float> On(Device& device, int64_t n, Call&& call, float initial = 0.0f) {
    Guarded<float> out(device, n, initial);
    call(device, out.get());
    return out.Read();
  }

  // Compares what `call` writes with the definition, the portable kernels and this backend's.
  template <typename Call>
  void Compare(int64_t n, double relative, double absolute, const std::string& what, Call&& call,
               float initial = 0.0f) {
    const std::vector<float> want = On(host(), n, call, initial);
    const std::vector<float> got = On(here(), n, call, initial);
    ExpectClose(want, got, relative, absolute, what);
    ExpectPortable(On(portable_, n, call, initial), got, what);
  }
  template <typename T>
  void ExpectPortable(const std::vector<T>& portable, const std::vector<T>& got,
                      const std::string& what) {
    if (here().backend().is_definition) return;
    ASSERT_EQ(portable.size(), got.size());
    // memcmp takes no null pointer, which is what an empty vector may have.
    ASSERT_TRUE(got.empty() ||
                std::memcmp(portable.data(), got.data(), got.size() * sizeof(T)) == 0)
        << what << ": not the portable kernel's numbers";
  }
  // Sums of rows that came in several cuts: the same to the last bit. The definition adds in double
  // and rounds after each cut.
  void ExpectSameSums(const std::vector<float>& whole, const std::vector<float>& cuts,
                      const std::string& what) {
    if (here().backend().is_definition) {
      ExpectClose(whole, cuts, 1e-5, 1e-5, what);
    } else {
      EXPECT_EQ(cuts, whole) << what;
    }
  }
  int64_t NonFinite(const std::vector<float>& x) {
    Guarded<int64_t> count(here(), 1, -1);
    here().Run(&SelectionKernels::count_non_finite, {here().In(x), std::ssize(x), count.get()});
    return count.Read()[0];
  }
  static std::byte* Scratch(Device& d, const Shape& s, int64_t rows = 0) {
    return d.Scratch(SelectionScratchBytes(s.dim, rows));
  }
  static std::string Label(const Shape& s) {
    return std::to_string(s.tokens) + " tokens of " + std::to_string(s.dim);
  }
  Device& portable() { return portable_; }

 private:
  Device portable_;
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
        Compare(
            rows * stride, 2e-5, 1e-7, Label(s),
            [&](Device& d, float* out) {
              d.Run(&SelectionKernels::window_attention, {{pages->In(d), false, 1, 0, s.tokens},
                                                          d.In(q),
                                                          s.dim + 3,
                                                          rows,
                                                          first,
                                                          0.125f,
                                                          out,
                                                          stride,
                                                          Scratch(d, s)});
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
  const std::vector<float> out = On(here(), 20 * 150, [&](Device& d, float* weights) {
    d.Run(&SelectionKernels::window_attention, {{pages->In(d), false, 0, 0, 150},
                                                d.In(q),
                                                64,
                                                20,
                                                130,
                                                0.125f,
                                                weights,
                                                150,
                                                Scratch(d, s)});
  });
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
    const std::vector<float> out = On(here(), 60 * 100, [&](Device& d, float* weights) {
      d.Run(&SelectionKernels::window_attention, {{pages->In(d), false, 0, 0, 100},
                                                  d.In(q),
                                                  64,
                                                  60,
                                                  40,
                                                  1.0f,
                                                  weights,
                                                  100,
                                                  Scratch(d, s)});
    });
    for (int64_t r = 0; r < 60; ++r) {
      EXPECT_EQ(std::isnan(out[static_cast<size_t>(r * 100)]), r >= 30) << "row " << r;
    }
    const std::vector<float> sums = On(here(), 100, [&](Device& d, float* sum) {
      d.Run(&SelectionKernels::accumulate_attention,
            {{pages->In(d), false, 0, 0, 100},
             d.In(q),
             64,
             60,
             40,
             1.0f,
             sum,
             d.Allocate<float>(kAccumulatedRows * RoundedTokens(100)),
             Scratch(d, s)});
    });
    EXPECT_EQ(NonFinite(sums), 100);
    const std::vector<float> largest = On(here(), 100, [&](Device& d, float* row) {
      d.Run(&SelectionKernels::reduce_rows, {Reduction::kMax, d.In(out), 60, 100, 100, row});
    });
    EXPECT_EQ(NonFinite(largest), 100);
  }
}

TEST_P(SelectionKernelsTest, AccumulatedAttentionIsTheSumWhateverTheCuts) {
  for (const Shape& s : kShapes) {
    const auto pages = RandomPages(s);
    const std::vector<float> q = Random(s.tokens * s.dim + 1);
    const auto in_cuts = [&](int64_t cut) {
      return [&, cut](Device& d, float* sums) {
        const PagedKv kv = pages->In(d);
        const float* const queries = d.In(q);
        auto* const weights =
            d.Allocate<float>(static_cast<size_t>(kAccumulatedRows * RoundedTokens(s.tokens) + 1));
        std::byte* const scratch = Scratch(d, s);
        for (int64_t at = 0; at < s.tokens; at += cut) {
          const int64_t rows = std::min(cut, s.tokens - at);
          d.Run(&SelectionKernels::accumulate_attention, {{kv, false, 1, 0, at + rows},
                                                          queries + at * s.dim,
                                                          s.dim,
                                                          rows,
                                                          at,
                                                          0.125f,
                                                          sums,
                                                          weights,
                                                          scratch});
        }
      };
    };
    Compare(s.tokens, 1e-4, 1e-6, Label(s), in_cuts(1000));
    const std::vector<float> whole = On(here(), s.tokens, in_cuts(1000));
    for (const int64_t cut : {1, 7, 64}) {
      if (cut == 1 && s.tokens > 70) continue;  // Slow where launches are.
      ExpectSameSums(whole, On(here(), s.tokens, in_cuts(cut)),
                     Label(s) + " in cuts of " + std::to_string(cut));
    }
  }
}

TEST_P(SelectionKernelsTest, RowsReduceToMeanMaximumAndVariance) {
  for (const int64_t cols : {0, 1, 15, 16, 100}) {
    for (const int64_t rows : {1, 2, 33}) {
      const std::vector<float> x = Random(rows * (cols + 3));
      for (const Reduction reduction : {Reduction::kMean, Reduction::kMax, Reduction::kVariance}) {
        Compare(cols, 1e-5, 1e-6, "cols " + std::to_string(cols), [&](Device& d, float* out) {
          d.Run(&SelectionKernels::reduce_rows, {reduction, d.In(x), rows, cols, cols + 3, out});
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
        Compare(n, 1e-5, 1e-6, "n " + std::to_string(n), [&](Device& d, float* out) {
          d.Run(&SelectionKernels::pool, {d.In(x), out, n, reach, max});
        });
      }
    }
  }
  const std::vector<float> x = {3, -1, -2, -6};
  const auto pool = [&](bool max) {
    return On(here(), 4, [&](Device& d, float* y) {
      d.Run(&SelectionKernels::pool, {d.In(x), y, 4, 1, max});
    });
  };
  const std::vector<float> means = pool(false), maxima = pool(true);
  EXPECT_FLOAT_EQ(means[0], 2.0f / 3);
  EXPECT_FLOAT_EQ(means[3], -8.0f / 3);
  EXPECT_EQ(maxima[0], 3.0f);
  EXPECT_EQ(maxima[3], -2.0f);
}

TEST_P(SelectionKernelsTest, ChunksHaveTheirMeanAndAPartItsOwn) {
  for (const int64_t n : {0, 1, 19, 20, 101}) {
    const std::vector<float> x = Random(n);
    for (const int64_t chunk : {1, 10, 20, 200}) {
      Compare((n + chunk - 1) / chunk, 1e-5, 1e-6, "n " + std::to_string(n),
              [&](Device& d, float* out) {
                d.Run(&SelectionKernels::chunk_means, {d.In(x), n, chunk, out});
              });
    }
  }
}

TEST_P(SelectionKernelsTest, EntropyAndSoftmax) {
  for (const int64_t n : {1, 5, 16, 77, 1000}) {
    const std::vector<float> x = Random(n, 3.0f);
    const auto softmax = [&](Device& d, float* out) {
      d.stream().CopyIn(out, x.data(), x.size() * sizeof(float));
      d.Run(&SelectionKernels::softmax, {out, n});
    };
    Compare(n, 2e-5, 1e-7, "softmax", softmax);
    std::vector<float> p = On(here(), n, softmax);
    p.back() = 0.0f;
    Compare(1, 2e-5, 1e-6, "entropy", [&](Device& d, float* out) {
      d.Run(&SelectionKernels::entropy, {d.In(p), n, out});
    });
  }
  const std::vector<float> even(64, 1.0f / 64);
  const std::vector<float> entropy = On(here(), 1, [&](Device& d, float* out) {
    d.Run(&SelectionKernels::entropy, {d.In(even), 64, out});
  });
  EXPECT_NEAR(entropy[0], std::log(64.0), 1e-5);
}

TEST_P(SelectionKernelsTest, ScoresOfSingleRowsMatchTheDefinition) {
  for (const Shape& s : kShapes) {
    const auto pages = RandomPages(s);
    const int64_t rows = std::max<int64_t>(s.dim, kProjectedRows);
    // A range in the middle, as threads have.
    const int64_t begin = s.tokens / 3, end = s.tokens - s.tokens / 5;
    const auto keys = [&](Device& d) { return TokenRows{pages->In(d), false, 1, begin, end}; };
    const auto values = [&](Device& d) { return TokenRows{pages->In(d), true, 1, begin, end}; };
    const int64_t count = end - begin;
    for (const bool v : {false, true}) {
      Compare(count, 1e-5, 1e-6, "norms " + Label(s), [&](Device& d, float* out) {
        d.Run(&SelectionKernels::row_norms, {v ? values(d) : keys(d), out, Scratch(d, s, rows)});
      });
    }
    const std::vector<float> norms = On(host(), count + 1, [&](Device& d, float* out) {
      d.Run(&SelectionKernels::row_norms, {keys(d), out, Scratch(d, s, rows)});
    });
    Compare(
        s.dim, 1e-4, 1e-5, "units " + Label(s),
        [&](Device& d, float* out) {
          d.Run(&SelectionKernels::sum_unit_rows, {keys(d), d.In(norms), out});
        },
        0.5f);
    const std::vector<float> v = Random(s.dim);
    Compare(count, 1e-4, 1e-6, "cosines " + Label(s), [&](Device& d, float* out) {
      d.Run(&SelectionKernels::cosines, {keys(d), d.In(norms), d.In(v), out, Scratch(d, s, rows)});
    });
    const std::vector<float> covariance = Random(s.dim * s.dim, 0.3f);
    Compare(count, 1e-4, 1e-4, "expected " + Label(s), [&](Device& d, float* out) {
      d.Run(&SelectionKernels::expected_logits,
            {keys(d), d.In(v), d.In(covariance), 0.125f, out, Scratch(d, s, rows)});
    });
    for (const int64_t hidden : {int64_t{0}, int64_t{1}, int64_t{100}}) {
      const std::vector<float> w = Random(hidden * s.dim);
      Compare(
          count, 1e-4, 1e-5, "projected",
          [&](Device& d, float* out) {
            d.Run(&SelectionKernels::projected_norms,
                  {values(d), d.In(w), hidden, out, Scratch(d, s, rows)});
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
    for (const bool values : {false, true}) {
      Compare(half - 1, 1e-4, 1e-6, Label(s), [&](Device& d, float* out) {
        d.Run(&SelectionKernels::lag_scores, {{pages->In(d), values, 0, 1, half},
                                              {pages->In(d), values, 0, half, s.tokens},
                                              out,
                                              Scratch(d, s, kLagScratchRows)});
      });
    }
  }
}

TEST_P(SelectionKernelsTest, QueryMomentsAddUpWhateverTheCuts) {
  for (const int64_t dim : {16, 64, 128}) {
    const std::vector<float> q = Random(45 * (dim + 2));
    const auto in_cuts = [&](int64_t cut) {
      return [&, cut](Device& d, float* out) {
        const float* const queries = d.In(q);
        for (int64_t at = 0; at < 45; at += cut) {
          d.Run(&SelectionKernels::query_moments,
                {queries + at * (dim + 2), dim + 2, std::min<int64_t>(cut, 45 - at), dim, out,
                 out + dim});
        }
      };
    };
    Compare(dim * (dim + 1), 1e-4, 1e-4, "moments", in_cuts(45));
    ExpectSameSums(On(here(), dim * (dim + 1), in_cuts(45)),
                   On(here(), dim * (dim + 1), in_cuts(7)), "moments");
  }
}

TEST_P(SelectionKernelsTest, CountsNumbersThatAreNotFinite) {
  std::vector<float> x = Random(100);
  EXPECT_EQ(NonFinite(x), 0);
  EXPECT_EQ(NonFinite({}), 0);
  x[0] = NAN;
  x[50] = -std::numeric_limits<float>::infinity();
  x[99] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(NonFinite(x), 3);
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
        const auto mark = [&](Device& d) {
          Guarded<uint8_t> marks(d, before);
          d.Run(&SelectionKernels::mark_top, {d.In(scores), n, count, marks.get()});
          return marks.Read();
        };
        ASSERT_EQ(mark(here()), mark(host()))
            << n << " numbers, kind " << kind << ", count " << count;
      }
    }
  }
}

TEST_P(SelectionKernelsTest, EqualScoresGoByPosition) {
  const std::vector<float> scores = {1, 2, 2, -0.0f, 0.0f, 2, 1};
  Guarded<uint8_t> marks(here(), 7);
  here().Run(&SelectionKernels::mark_top, {here().In(scores), 7, 2, marks.get()});
  EXPECT_EQ(marks.Read(), (std::vector<uint8_t>{0, 1, 1, 0, 0, 0, 0}));
  here().Run(&SelectionKernels::mark_top, {here().In(scores), 7, 4, marks.get()});
  EXPECT_EQ(marks.Read(), (std::vector<uint8_t>{1, 1, 1, 1, 0, 1, 1}));
}

TEST_P(SelectionKernelsTest, GathersRowsExactly) {
  for (const Shape& s : kShapes) {
    if (s.tokens == 0) continue;
    const auto pages = RandomPages(s);
    std::vector<int32_t> rows;
    for (int64_t t = 0; t < s.tokens; t += 1 + t % 3) rows.push_back(static_cast<int32_t>(t));
    const auto n = static_cast<int64_t>(rows.size());
    for (const bool values : {false, true}) {
      const auto gather = [&](Device& d) {
        Guarded<uint16_t> out(d, n * s.dim);
        d.Run(&SelectionKernels::gather_rows,
              {{pages->In(d), values, 1, 0, s.tokens}, d.In(rows), n, out.get()});
        return out.Read();
      };
      const std::vector<uint16_t> got = gather(here());
      EXPECT_EQ(got, gather(host())) << Label(s);
      const uint16_t* const last = values ? pages->V(1, rows.back()) : pages->K(1, rows.back());
      EXPECT_EQ(got[static_cast<size_t>((n - 1) * s.dim)], last[0]);
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
    std::vector<uint16_t> keys;
    for (const float f : x) keys.push_back(ToHalf(f));
    const auto turn = [&](Device& d) {
      Guarded<uint16_t> turned(d, keys);
      d.Run(&SelectionKernels::turn_rows,
            {turned.get(), rows, dim, rope, d.In(cosine), d.In(sine)});
      return turned.Read();
    };
    const std::vector<uint16_t> got = turn(here()), want = turn(host());
    ExpectPortable(turn(portable()), got, "turned keys");
    for (size_t i = 0; i < x.size(); ++i) {
      const float w = selections::testing::FromHalf(want[i]);
      ASSERT_NEAR(selections::testing::FromHalf(got[i]), w, 1e-3f * std::fabs(w) + 1e-6f);
      if (static_cast<int64_t>(i) % dim >= rope) {
        ASSERT_EQ(got[i], keys[i]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SelectionKernelsTest,
                         ::testing::ValuesIn(kernels::testing::BackendNames()), BackendCaseName);

}  // namespace
}  // namespace cairn::kernels
