// Attention over paged KV: every implementation against the reference.

#include <algorithm>
#include <limits>

#include "tests/conformance/kernels/case.h"

namespace cairn::kernels {
namespace {

using testing::ExpectClose;
using testing::Guarded;
using testing::Scratch;

struct Case {
  int64_t block_tokens, dim, kv_heads, group, first, rows;
};

// Random K and V of one layer in pages that lie in a random order.
class Pages {
 public:
  Pages(const Case& c, std::mt19937* rng) : c_(c) {
    const int64_t tokens = c.first + c.rows;
    const int64_t count = (tokens + c.block_tokens - 1) / c.block_tokens;
    const auto numbers = static_cast<size_t>(2 * c.kv_heads * c.block_tokens * c.dim);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    std::vector<size_t> order(static_cast<size_t>(count));
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), *rng);
    data_.resize(order.size() * numbers);
    for (uint16_t& h : data_) h = testing::HalfOf(normal(*rng));
    for (const size_t i : order) {
      pages_.push_back(reinterpret_cast<const std::byte*>(data_.data() + i * numbers));
    }
    // What lies behind the last token must not matter.
    for (int64_t t = tokens; t < count * c.block_tokens; ++t) {
      for (int64_t h = 0; h < c.kv_heads; ++h) {
        for (int64_t d = 0; d < c.dim; ++d) {
          const_cast<uint16_t*>(View().K(h, t))[d] = 0x7e00;
          const_cast<uint16_t*>(View().V(h, t))[d] = 0x7e00;
        }
      }
    }
  }

  PagedKv View() const {
    PagedKv kv;
    kv.pages = pages_.data();
    kv.block_tokens = c_.block_tokens;
    kv.head_dim = c_.dim;
    kv.head_stride = static_cast<size_t>(c_.block_tokens * c_.dim) * 2;
    kv.k_offset = 0;
    kv.v_offset = kv.head_stride * static_cast<size_t>(c_.kv_heads);
    return kv;
  }

 private:
  Case c_;
  std::vector<uint16_t> data_;
  std::vector<const std::byte*> pages_;
};

const Case kCases[] = {
    {64, 64, 3, 3, 0, 1},   {64, 64, 3, 3, 0, 64},   {64, 64, 1, 3, 128, 64}, {64, 64, 2, 1, 64, 37},
    {16, 64, 1, 4, 48, 16}, {16, 32, 2, 2, 16, 33},  {256, 128, 1, 8, 256, 5}, {64, 80, 1, 2, 64, 20},
    {32, 96, 1, 1, 96, 32}, {64, 20, 1, 3, 0, 17},   {64, 64, 1, 5, 63, 2},
};

std::string Describe(const Case& c) {
  return "block " + std::to_string(c.block_tokens) + ", head " + std::to_string(c.dim) +
         ", group " + std::to_string(c.group) + ", rows " + std::to_string(c.first) + "+" +
         std::to_string(c.rows);
}

class AttentionTest : public testing::KernelTest {
 protected:
  // All KV heads, `step` rows a call.
  static void Run(void (*attention)(const AttentionArgs&), const Case& c, const PagedKv& kv,
                  const std::vector<float>& q, float* out, int64_t step) {
    const int64_t width = c.kv_heads * c.group * c.dim;
    Scratch scratch(AttentionScratchBytes(step, c.group, c.dim));
    for (int64_t h = 0; h < c.kv_heads; ++h) {
      for (int64_t r = 0; r < c.rows; r += step) {
        AttentionArgs a;
        a.kv = kv;
        a.q = q.data() + r * width;
        a.out = out + r * width;
        a.rows = std::min(step, c.rows - r);
        a.q_stride = width;
        a.out_stride = width;
        a.first_position = c.first + r;
        a.kv_head = h;
        a.group = c.group;
        a.scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
        a.scratch = scratch.get();
        attention(a);
      }
    }
  }
};

TEST_P(AttentionTest, Prefill) {
  for (const Case& c : kCases) {
    const Pages pages(c, &rng());
    const int64_t n = c.rows * c.kv_heads * c.group * c.dim;
    const std::vector<float> q = Random(n);
    Guarded<float> want(n), got(n);
    Run(reference().attention_f32, c, pages.View(), q, want.get(), c.rows);
    Run(cpu().attention_f32, c, pages.View(), q, got.get(), c.rows);
    ExpectClose(want.span(), got.span(), 1e-5, 1e-6, Describe(c));
    if (!SupportsBf16Attention(cpu(), c.dim)) continue;
    Guarded<float> bf16(n);
    Run(cpu().attention_bf16, c, pages.View(), q, bf16.get(), c.rows);
    ExpectClose(want.span(), bf16.span(), 2e-2, 3e-2, Describe(c) + " bf16");
  }
}

TEST_P(AttentionTest, ARowDoesNotDependOnTheOtherRows) {
  for (const Case& c : kCases) {
    const Pages pages(c, &rng());
    const int64_t n = c.rows * c.kv_heads * c.group * c.dim;
    const std::vector<float> q = Random(n);
    for (auto* attention : {cpu().attention_f32, cpu().attention_bf16}) {
      if (attention == nullptr ||
          (attention == cpu().attention_bf16 && !SupportsBf16Attention(cpu(), c.dim))) {
        continue;
      }
      Guarded<float> together(n), apart(n);
      Run(attention, c, pages.View(), q, together.get(), c.rows);
      for (const int64_t step : {1, 7, 32}) {
        Run(attention, c, pages.View(), q, apart.get(), step);
        ASSERT_TRUE(std::equal(apart.span().begin(), apart.span().end(), together.span().begin()))
            << Describe(c) << ", " << step << " rows a call";
      }
    }
  }
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  const Case c{64, 64, 1, 2, 64, 10};
  const Pages pages(c, &rng());
  const int64_t n = c.rows * c.group * c.dim;
  const std::vector<float> q = Random(n, 300.0f);
  Guarded<float> want(n), got(n);
  Run(reference().attention_f32, c, pages.View(), q, want.get(), c.rows);
  Run(cpu().attention_f32, c, pages.View(), q, got.get(), c.rows);
  ExpectClose(want.span(), got.span(), 1e-3, 1e-3, "large scores");
}

TEST_P(AttentionTest, DecodeInPartsEqualsTheReference) {
  for (const Case& c : kCases) {
    const Pages pages(c, &rng());
    const int64_t heads = c.kv_heads * c.group;
    const std::vector<float> q = Random(heads * c.dim);
    const int64_t tokens = c.first + c.rows;
    Case last = c;
    last.first = tokens - 1;
    last.rows = 1;
    Guarded<float> want(heads * c.dim);
    Run(reference().attention_f32, last, pages.View(), q, want.get(), 1);
    for (const int64_t split : {int64_t{16}, int64_t{50}, tokens}) {
      const int64_t parts = (tokens + split - 1) / split;
      Guarded<float> acc(parts * heads * c.dim), max(parts * heads), sum(parts * heads);
      Scratch scratch(AttentionPartScratchBytes(split, c.group));
      for (int64_t p = 0; p < parts; ++p) {
        for (int64_t h = 0; h < c.kv_heads; ++h) {
          AttentionPartArgs a;
          a.kv = pages.View();
          a.q = q.data();
          a.kv_head = h;
          a.group = c.group;
          a.begin = p * split;
          a.end = std::min(tokens, a.begin + split);
          a.scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
          const int64_t first = p * heads + h * c.group;
          a.acc = acc.get() + first * c.dim;
          a.max = max.get() + first;
          a.sum = sum.get() + first;
          a.scratch = scratch.get();
          cpu().attention_part(a);
        }
      }
      Guarded<float> got(heads * c.dim);
      cpu().attention_merge({acc.get(), max.get(), sum.get(), got.get(), parts, heads, c.dim});
      ExpectClose(want.span(), got.span(), 1e-5, 1e-6,
                  Describe(c) + ", split " + std::to_string(split));
    }
  }
}

TEST_P(AttentionTest, MergeIgnoresEmptyParts) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> acc = {0, 0, 2, 4, 0, 0}, max = {-inf, 1, -inf}, sum = {0, 2, 0};
  Guarded<float> out(2);
  cpu().attention_merge({acc.data(), max.data(), sum.data(), out.get(), 3, 1, 2});
  EXPECT_EQ(out.span()[0], 1.0f);
  EXPECT_EQ(out.span()[1], 2.0f);
}

INSTANTIATE_TEST_SUITE_P(All, AttentionTest,
                         ::testing::Values(Isa::kPortable, Isa::kAvx2, Isa::kAvx512,
                                           Isa::kAvx512Bf16, Isa::kAmx),
                         testing::IsaName);

}  // namespace
}  // namespace cairn::kernels
