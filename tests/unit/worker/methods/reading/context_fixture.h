#pragma once
// Random contexts in a pool, and plain arithmetic over their rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/kernels/backend.h"
#include "common/status/matchers.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/methods/reading/open_context.h"

namespace cairn::worker {

// More layers than gathers may be under way.
inline constexpr KvLayout kKv{.layers = 6, .kv_heads = 2, .head_dim = 64, .block_tokens = 64};
inline constexpr int32_t kHeads = 6;
inline constexpr int kGroup = kHeads / kKv.kv_heads;
inline constexpr int64_t kDim = kKv.head_dim;

class ContextFixture : public ::testing::Test {
 protected:
  ContextFixture() : pool_(1), kv_pool_(*KvPool::Create(kKv, 64 * kKv.page_bytes())) {}

  // `tokens` random rows; some keys point where others do not, so that choices matter.
  KvSequence RandomContext(int64_t tokens) {
    KvSequence sequence = kv_pool_->NewSequence();
    EXPECT_OK(sequence.Reserve(tokens));
    std::normal_distribution<float> normal(0.0f, 1.0f);
    kernels::InlineStream stream;
    for (int64_t t = 0; t < tokens; ++t) {
      const float length = t % 7 == 0 ? 2.0f : 0.5f;
      for (int layer = 0; layer < kKv.layers; ++layer) {
        for (int plane = 0; plane < 2 * kKv.kv_heads; ++plane) {
          float row[kDim];
          for (float& x : row) x = normal(rng_) * (plane < kKv.kv_heads ? length : 1.0f);
          auto* const to = reinterpret_cast<uint16_t*>(
              sequence.LayerSlice(t / kKv.block_tokens, layer).data() +
              static_cast<size_t>(plane) * kKv.head_bytes() +
              static_cast<size_t>(t % kKv.block_tokens) * kKv.row_bytes());
          Forward().to_half(stream, {row, to, kDim});
        }
      }
    }
    sequence.SetLength(tokens);
    return sequence;
  }

  static const kernels::ForwardKernels& Forward() { return *kernels::BestCpuBackend().forward; }

  // A row of K or V in double.
  static std::vector<double> Row(const KvSequence& sequence, int layer, int head, bool values,
                                 int64_t t) {
    const auto* const from = reinterpret_cast<const uint16_t*>(
        sequence.LayerSlice(t / kKv.block_tokens, layer).data() + (values ? kKv.plane_bytes() : 0) +
        static_cast<size_t>(head) * kKv.head_bytes() +
        static_cast<size_t>(t % kKv.block_tokens) * kKv.row_bytes());
    float row[kDim];
    kernels::InlineStream stream;
    Forward().from_half(stream, {from, row, kDim});
    return {row, row + kDim};
  }

  std::vector<float> RandomQuery(float spread = 1.0f) {
    std::normal_distribution<float> normal(0.0f, spread);
    std::vector<float> q(kHeads * kDim);
    for (float& x : q) x = normal(rng_);
    return q;
  }

  ReadingTerms Terms(const std::string& policy, uint64_t budget = 0) {
    ReadingTerms terms;
    auto parsed = ParseReadPolicy(policy);
    EXPECT_OK(parsed);
    terms.policy = *parsed;
    terms.budget = {.bytes = budget};
    terms.heads = kHeads;
    terms.backend = &kernels::BestCpuBackend();
    terms.clock = &clock_;
    return terms;
  }

  // Attention of query head h over some rows, in double.
  static std::vector<double> Attention(std::span<const std::vector<double>> keys,
                                       std::span<const std::vector<double>> values,
                                       const float* q) {
    std::vector<double> logits, out(kDim);
    for (const auto& key : keys) {
      double dot = 0;
      for (size_t d = 0; d < kDim; ++d) dot += key[d] * static_cast<double>(q[d]);
      logits.push_back(dot / 8);  // The root of 64 dimensions.
    }
    const double max = *std::ranges::max_element(logits);
    double sum = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      const double weight = std::exp(logits[i] - max);
      sum += weight;
      for (size_t d = 0; d < kDim; ++d) out[d] += weight * values[i][d];
    }
    for (double& x : out) x /= sum;
    return out;
  }

  // Own tokens of a step: the pages of a sequence of their own.
  static kernels::PagedKv OwnView(const KvSequence& own, int layer) {
    kernels::PagedKv view;
    view.pages = own.pages().data();
    view.block_tokens = kKv.block_tokens;
    view.head_dim = kDim;
    view.k_offset = static_cast<size_t>(layer) * kKv.layer_bytes();
    view.v_offset = view.k_offset + kKv.plane_bytes();
    view.head_stride = kKv.head_bytes();
    return view;
  }

  std::mt19937 rng_{7};
  FakeClock clock_;
  kernels::ThreadPool pool_;
  std::unique_ptr<KvPool> kv_pool_;
};

}  // namespace cairn::worker
