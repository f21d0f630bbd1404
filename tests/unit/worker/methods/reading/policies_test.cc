// One suite over all read policies: which rows they choose, by plain references, and what attention
// makes of them.

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>

#include "common/config/config.h"
#include "kernels/codecs/run_inline.h"
#include "kernels/codecs/turbo/turbo_plane.h"
#include "services/worker/methods/reading/key_rotation.h"
#include "tests/unit/worker/methods/reading/context_fixture.h"

namespace cairn::worker {
namespace {

using Rows = std::vector<std::vector<double>>;

class PoliciesTest : public ContextFixture, public ::testing::WithParamInterface<std::string> {
 protected:
  static constexpr int64_t kRows = 5 * 64;

  // The row as the copy has it, after rounding to binary16.
  static std::vector<double> Copied(const std::vector<double>& row, int layer, bool values,
                                    const CopyFormat& format) {
    EXPECT_EQ(format.form, kernels::CopyForm::kTurbo);
    kernels::InlineStream stream;
    std::vector<float> floats(row.begin(), row.end());
    std::vector<uint16_t> half(kDim), decoded(kDim);
    Forward().to_half(stream, {floats.data(), half.data(), kDim});
    uint32_t signs[kDim];
    codecs::TurboSigns(layer, values ? codecs::PlaneRole::kValues : codecs::PlaneRole::kKeys, kDim,
                       signs);
    const kernels::CodecKernels& codec = kernels::ReferenceCodecKernels();
    std::vector<std::byte> bytes(static_cast<size_t>(kernels::TurboRowBytes(kDim, format.bits)));
    const kernels::TurboParams params{format.bits, signs};
    EXPECT_TRUE(
        codecs::EncodeRows(codec.turbo_encode, {half.data(), 1, kDim, kDim}, params, bytes.data()));
    EXPECT_TRUE(codecs::DecodeRows(codec.turbo_decode, bytes.data(), params,
                                   {decoded.data(), 1, kDim, kDim}));
    Forward().from_half(stream, {decoded.data(), floats.data(), kDim});
    return {floats.begin(), floats.end()};
  }

  static Rows AllRows(const KvSequence& s, int layer, int head, bool values) {
    Rows rows;
    for (int64_t t = 0; t < kRows; ++t) rows.push_back(Row(s, layer, head, values, t));
    return rows;
  }

  // Logits of rows that have the logit of their cluster's mean key: k-means of keys of length 1
  // from rows at even distances, 8 rounds.
  static std::vector<double> ClusterLogits(const Rows& keys, int64_t count, const float* q) {
    const size_t n = keys.size(), centre_count = static_cast<size_t>(count);
    Rows unit = keys;
    for (auto& row : unit) {
      const double length = std::sqrt(std::inner_product(row.begin(), row.end(), row.begin(), 0.0));
      for (double& x : row) x /= length;
    }
    Rows centres;
    for (size_t c = 0; c < centre_count; ++c) centres.push_back(unit[c * n / centre_count]);
    std::vector<size_t> of_row(n);
    const auto means = [&](const Rows& rows, Rows* to) {
      for (size_t c = 0; c < centre_count; ++c) {
        std::vector<double> sum(kDim);
        double size = 0;
        for (size_t r = 0; r < n; ++r) {
          if (of_row[r] != c) continue;
          ++size;
          for (size_t d = 0; d < kDim; ++d) sum[d] += rows[r][d];
        }
        if (size == 0) continue;
        for (double& x : sum) x /= size;
        (*to)[c] = sum;
      }
    };
    for (int round = 0; round < 8; ++round) {
      if (round > 0) means(unit, &centres);
      for (size_t r = 0; r < n; ++r) {
        double nearest = 1e9;
        for (size_t c = 0; c < centre_count; ++c) {
          double distance = 0;
          for (size_t d = 0; d < kDim; ++d) {
            distance += (unit[r][d] - centres[c][d]) * (unit[r][d] - centres[c][d]);
          }
          if (distance >= nearest) continue;
          nearest = distance;
          of_row[r] = c;
        }
      }
    }
    means(keys, &centres);
    std::vector<double> logits;
    for (size_t r = 0; r < n; ++r) {
      double dot = 0;
      for (size_t d = 0; d < kDim; ++d) {
        dot += centres[of_row[r]][d] * static_cast<double>(q[d]);
      }
      logits.push_back(dot / 8);
    }
    return logits;
  }

  // Directions that planted rotations have: of each head its own, and queries that prefer the last.
  static std::shared_ptr<const KeyRotations> Planted() {
    auto made = std::make_shared<KeyRotations>();
    made->layers = kKv.layers;
    made->kv_heads = kKv.kv_heads;
    made->head_dim = kDim;
    std::mt19937 rng(11);
    std::normal_distribution<float> normal;
    for (int i = 0; i < kKv.layers * kKv.kv_heads; ++i) {
      std::vector<float> rows(4 * kDim * kDim);
      for (float& x : rows) x = normal(rng);
      const std::vector<float> directions = PrincipalColumns(rows, kDim, kDim);
      made->directions.insert(made->directions.end(), directions.begin(), directions.end());
      for (int64_t c = 0; c < kDim; ++c) {
        made->queries.push_back(0.02f * static_cast<float>(c));
      }
    }
    return made;
  }
  // The `count` of them with the largest mean |q . d| + |k . d|.
  static std::vector<float> LargestDirections(const Rows& keys, int layer, int head,
                                              int64_t count) {
    const auto planted = Planted();
    const int64_t at = layer * kKv.kv_heads + head;
    std::vector<std::pair<double, int64_t>> sizes;
    for (int64_t i = 0; i < kDim; ++i) {
      double size = 0;
      for (const auto& key : keys) {
        double dot = 0;
        for (int64_t c = 0; c < kDim; ++c) {
          dot += key[static_cast<size_t>(c)] *
                 static_cast<double>(
                     planted->directions[static_cast<size_t>((at * kDim + i) * kDim + c)]);
        }
        size += std::fabs(dot) / static_cast<double>(keys.size());
      }
      size += static_cast<double>(planted->queries[static_cast<size_t>(at * kDim + i)]);
      sizes.emplace_back(-size, i);
    }
    std::ranges::sort(sizes);
    std::vector<float> columns;
    for (int64_t i = 0; i < count; ++i) {
      const auto first =
          planted->directions.begin() + (at * kDim + sizes[static_cast<size_t>(i)].second) * kDim;
      columns.insert(columns.end(), first, first + kDim);
    }
    return columns;
  }

  ReadingTerms Terms(const std::string& policy, uint64_t budget = 0) {
    ReadingTerms terms = ContextFixture::Terms(policy, budget);
    if (terms.policy.rotation != 0) terms.rotations = Planted();
    return terms;
  }

  // Logits of the units of a policy with one query, straight from its definition.
  static std::vector<double> UnitLogits(const ReadPolicy& p, const Rows& keys, int layer, int head,
                                        const float* q) {
    const auto dot = [&](const std::vector<double>& k) {
      double sum = 0;
      for (size_t d = 0; d < kDim; ++d) sum += k[d] * static_cast<double>(q[d]);
      return sum / 8;
    };
    std::vector<double> logits;
    switch (p.kind) {
      case PolicyKind::kExactTopK:
        for (const auto& key : keys) logits.push_back(dot(key));
        break;
      case PolicyKind::kPrecision:
      case PolicyKind::kKeysCopy:
        for (const auto& key : keys) logits.push_back(dot(Copied(key, layer, false, p.near_k)));
        break;
      case PolicyKind::kQuest:
      case PolicyKind::kLandmark:
        for (size_t at = 0; at < keys.size(); at += static_cast<size_t>(p.page)) {
          const size_t end = std::min(keys.size(), at + static_cast<size_t>(p.page));
          double bound = 0, mean = 0;
          for (size_t d = 0; d < kDim; ++d) {
            double top = -1e9, low = 1e9, sum = 0;
            for (size_t r = at; r < end; ++r) {
              top = std::max(top, keys[r][d]);
              low = std::min(low, keys[r][d]);
              sum += keys[r][d];
            }
            const auto x = static_cast<double>(q[d]);
            bound += std::max(x * top, x * low);
            mean += x * sum / static_cast<double>(end - at);
          }
          logits.push_back((p.kind == PolicyKind::kQuest ? bound : mean) / 8);
        }
        break;
      case PolicyKind::kClusters:
        return ClusterLogits(keys, std::llround(p.centres * kRows), q);
      case PolicyKind::kInfiniGen: {
        std::vector<float> flat;
        for (const auto& key : keys) flat.insert(flat.end(), key.begin(), key.end());
        const int64_t columns = std::llround(p.partial * kDim);
        const std::vector<float> a = p.rotation == 0
                                         ? PrincipalColumns(flat, kDim, columns)
                                         : LargestDirections(keys, layer, head, columns);
        for (const auto& key : keys) {
          double sum = 0;
          for (int64_t c = 0; c < columns; ++c) {
            double k = 0, x = 0;
            for (int64_t d = 0; d < kDim; ++d) {
              const auto e = static_cast<double>(a[static_cast<size_t>(c * kDim + d)]);
              k += key[static_cast<size_t>(d)] * e;
              x += static_cast<double>(q[d]) * e;
            }
            sum += k * x;
          }
          logits.push_back(sum / 8);
        }
        break;
      }
    }
    return logits;
  }

  // The rows that a policy chooses for a KV head, `q` being its group's queries.
  static std::set<int32_t> Reference(const ReadPolicy& p, const Rows& keys, int layer, int head,
                                     const float* q) {
    std::vector<double> score;
    std::vector<std::vector<double>> logits;
    for (int g = 0; g < kGroup; ++g) {
      logits.push_back(UnitLogits(p, keys, layer, head, q + g * kDim));
      const double max = *std::ranges::max_element(logits.back());
      double sum = 0;
      for (const double x : logits.back()) sum += std::exp(x - max);
      score.resize(logits.back().size());
      for (size_t i = 0; i < score.size(); ++i) {
        score[i] = std::max(score[i], std::exp(logits.back()[i] - max) / sum);
      }
    }
    std::vector<size_t> order(score.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return score[a] > score[b]; });
    const auto units =
        std::llround(p.rows * static_cast<double>(kRows) / static_cast<double>(p.unit_rows()));
    order.resize(static_cast<size_t>(std::max<int64_t>(1, units)));
    std::set<int32_t> rows;
    for (const size_t unit : order) {
      bool faint = p.kind == PolicyKind::kInfiniGen;
      for (const auto& of_head : logits) {
        faint = faint && of_head[unit] < *std::ranges::max_element(of_head) - p.alpha;
      }
      if (faint) continue;
      for (int64_t r = 0; r < p.unit_rows(); ++r) {
        const int64_t row = static_cast<int64_t>(unit) * p.unit_rows() + r;
        if (row < kRows) rows.insert(static_cast<int32_t>(row));
      }
    }
    return rows;
  }
};

TEST_P(PoliciesTest, ChoosesTheRowsOfItsReferenceAndAttendsToThem) {
  const ReadingTerms terms = Terms(GetParam());
  const KvSequence context = RandomContext(kRows);
  const KvSequence own = RandomContext(3);
  auto reader = OpenContext(terms, context, kRows, 3, pool_);
  ASSERT_OK(reader);
  (*reader)->BeginStep();
  int64_t same = 0, all = 0;
  for (int layer = 0; layer < kKv.layers; ++layer) {
    const std::vector<float> q = RandomQuery();
    // InfiniGen's choice is made one layer ahead where that is possible.
    if (terms.policy.query != DecodeReader::Guess::kNone && layer > 0) {
      (*reader)->Expect(layer, q.data(), pool_);
    }
    std::vector<float> out(kHeads * kDim);
    ASSERT_OK((*reader)->Attend(layer, q.data(), OwnView(own, layer), 3, out.data(), pool_));
    for (int head = 0; head < kKv.kv_heads; ++head) {
      const Rows keys = AllRows(context, layer, head, false);
      const Rows values = AllRows(context, layer, head, true);
      const float* const group = q.data() + head * kGroup * kDim;
      const std::set<int32_t> want = Reference(terms.policy, keys, layer, head, group);
      const auto chosen = (*reader)->chosen(layer, head);
      all += std::ssize(want);
      for (const int32_t row : chosen) same += want.contains(row) ? 1 : 0;
      ASSERT_EQ(chosen.size(), want.size());

      // Attention over the chosen rows, the first row and the own tokens.
      std::set<int32_t> exact(chosen.begin(), chosen.end());
      exact.insert(0);
      Rows k, v;
      for (int32_t t = 0; t < kRows; ++t) {
        const auto at = static_cast<size_t>(t);
        if (exact.contains(t)) {
          k.push_back(keys[at]);
          v.push_back(values[at]);
        } else if (terms.policy.has_copy()) {
          k.push_back(Copied(keys[at], layer, false, terms.policy.near_k));
          v.push_back(Copied(values[at], layer, true, terms.policy.near_v));
        }
      }
      for (int64_t t = 0; t < 3; ++t) {
        k.push_back(Row(own, layer, head, false, t));
        v.push_back(Row(own, layer, head, true, t));
      }
      for (int g = 0; g < kGroup; ++g) {
        const std::vector<double> expected = Attention(k, v, group + g * kDim);
        for (int64_t d = 0; d < kDim; ++d) {
          ASSERT_NEAR(out[static_cast<size_t>((head * kGroup + g) * kDim + d)],
                      expected[static_cast<size_t>(d)], 2e-3)
              << "layer " << layer << ", head " << head << ", query head " << g;
        }
      }
    }
  }
  EXPECT_GE(same, (all * 98 + 99) / 100) << "of " << all << " rows";
  EXPECT_EQ((*reader)->counters().late_rows, 0u);
}

TEST_P(PoliciesTest, TheSameQueryReadsNothingAgain) {
  const ReadingTerms terms = Terms(GetParam());
  const KvSequence context = RandomContext(kRows);
  const KvSequence own = RandomContext(1);
  auto reader = OpenContext(terms, context, kRows, 1, pool_);
  ASSERT_OK(reader);
  const std::vector<float> q = RandomQuery();
  std::vector<float> first(kHeads * kDim), second(kHeads * kDim);
  (*reader)->BeginStep();
  ASSERT_OK((*reader)->Attend(0, q.data(), OwnView(own, 0), 1, first.data(), pool_));
  const uint64_t bytes = (*reader)->counters().read_bytes;
  EXPECT_GT(bytes, 0u);
  (*reader)->BeginStep();
  ASSERT_OK((*reader)->Attend(0, q.data(), OwnView(own, 0), 1, second.data(), pool_));
  EXPECT_EQ((*reader)->counters().read_bytes, bytes);
  EXPECT_GE((*reader)->counters().hit_rows * 2, (*reader)->counters().chosen_rows);
  EXPECT_EQ(first, second);
}

TEST_P(PoliciesTest, ItsNearMemoryIsWhatItSays) {
  const ReadingTerms terms = Terms(GetParam());
  const KvSequence context = RandomContext(kRows);
  auto reader = OpenContext(terms, context, kRows, 1, pool_);
  ASSERT_OK(reader);
  EXPECT_EQ((*reader)->near().index_bytes, RowIndex::Bytes(terms.policy, kKv, kRows));
  // The least budget works, and one byte less names it.
  const uint64_t least = (*reader)->near().total();
  EXPECT_OK(OpenContext(Terms(GetParam(), least), context, kRows, 1, pool_));
  const auto refused = OpenContext(Terms(GetParam(), least - 1), context, kRows, 1, pool_);
  EXPECT_THAT(refused,
              ::cairn::testing::StatusIs(
                  StatusCode::kInvalidArgument,
                  ::testing::HasSubstr("expected at least " + config::FormatBytesUp(least) + ":")));
}

INSTANTIATE_TEST_SUITE_P(All, PoliciesTest,
                         ::testing::Values("precision:near=turbo3,rows=0.05",
                                           "precision:near=turbo3/turbo2,rows=0.02",
                                           "exact-topk:rows=0.1", "keys-copy:near=turbo2,rows=0.1",
                                           "quest:page=16,rows=0.2", "landmark:rows=0.2",
                                           "clusters:rows=0.2", "clusters:centres=1,rows=0.1",
                                           "infinigen:rows=0.2,query=attention",
                                           "infinigen:rows=0.2,rotation=0123456789abcdef"),
                         [](const auto& test) { return "Policy" + std::to_string(test.index); });

}  // namespace
}  // namespace cairn::worker
