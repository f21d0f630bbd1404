// Attention over paged KV: every implementation against the reference.

#include <algorithm>
#include <limits>

#include "tests/conformance/kernels/case.h"

namespace cairn::kernels {
namespace {

using testing::Device;
using testing::ExpectClose;
using testing::Guarded;

struct Case {
  int64_t block_tokens, dim, kv_heads, group, first, rows;
};

// Random K and V of one layer in pages that lie in a random order.
class Pages {
 public:
  Pages(const Case& c, std::mt19937* rng) : c_(c) {
    const int64_t tokens = c.first + c.rows;
    const int64_t count = (tokens + c.block_tokens - 1) / c.block_tokens;
    const size_t numbers = PageNumbers();
    std::normal_distribution<float> normal(0.0f, 1.0f);
    std::vector<size_t> order(static_cast<size_t>(count));
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), *rng);
    data_.resize(order.size() * numbers);
    for (uint16_t& h : data_) h = testing::HalfOf(normal(*rng));
    for (const size_t i : order) {
      pages_.push_back(reinterpret_cast<const std::byte*>(data_.data() + i * numbers));
    }
    // Numbers behind the last token must not matter.
    for (int64_t t = tokens; t < count * c.block_tokens; ++t) {
      for (int64_t h = 0; h < c.kv_heads; ++h) {
        for (int64_t d = 0; d < c.dim; ++d) {
          const_cast<uint16_t*>(View().K(h, t))[d] = 0x7e00;
          const_cast<uint16_t*>(View().V(h, t))[d] = 0x7e00;
        }
      }
    }
  }

  // In the memory of a device.
  PagedKv In(Device& device) const {
    return device.In(View(), c_.first + c_.rows, PageNumbers() * sizeof(uint16_t));
  }

 private:
  size_t PageNumbers() const {
    return static_cast<size_t>(2 * c_.kv_heads * c_.block_tokens * c_.dim);
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

  Case c_;
  std::vector<uint16_t> data_;
  std::vector<const std::byte*> pages_;
};

const Case kCases[] = {
    {64, 64, 3, 3, 0, 1},     {64, 64, 3, 3, 0, 64},  {64, 64, 1, 3, 128, 64},
    {64, 64, 2, 1, 64, 37},   {16, 64, 1, 4, 48, 16}, {16, 32, 2, 2, 16, 33},
    {256, 128, 1, 8, 256, 5}, {64, 80, 1, 2, 64, 20}, {32, 96, 1, 1, 96, 32},
    {64, 20, 1, 3, 0, 17},    {64, 64, 1, 5, 63, 2},
};

std::string Describe(const Case& c) {
  return "block " + std::to_string(c.block_tokens) + ", head " + std::to_string(c.dim) +
         ", group " + std::to_string(c.group) + ", rows " + std::to_string(c.first) + "+" +
         std::to_string(c.rows);
}

using Attention = void (*ForwardKernels::*)(Stream&, const AttentionArgs&);

class AttentionTest : public testing::KernelTest {
 protected:
  // All KV heads, `step` rows a call.
  static std::vector<float> Run(Device& device, Attention attention, const Case& c,
                                const Pages& pages, const std::vector<float>& q, int64_t step) {
    const int64_t width = c.kv_heads * c.group * c.dim;
    Guarded<float> out(device, c.rows * width);
    const PagedKv kv = pages.In(device);
    const float* const queries = device.In(q);
    std::byte* const scratch = device.Scratch(AttentionScratchBytes(step, c.group, c.dim));
    for (int64_t h = 0; h < c.kv_heads; ++h) {
      for (int64_t r = 0; r < c.rows; r += step) {
        AttentionArgs a;
        a.kv = kv;
        a.q = queries + r * width;
        a.out = out.get() + r * width;
        a.rows = std::min(step, c.rows - r);
        a.q_stride = width;
        a.out_stride = width;
        a.first_position = c.first + r;
        a.kv_head = h;
        a.group = c.group;
        a.scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
        a.scratch = scratch;
        device.Run(attention, a);
      }
    }
    return out.Read();
  }

  bool HasBf16(int64_t dim) { return SupportsBf16Attention(here().forward(), dim); }
  std::vector<Attention> Attentions(int64_t dim) {
    if (!HasBf16(dim)) return {&ForwardKernels::attention_f32};
    return {&ForwardKernels::attention_f32, &ForwardKernels::attention_bf16};
  }
};

TEST_P(AttentionTest, Prefill) {
  for (const Case& c : kCases) {
    const Pages pages(c, &rng());
    const std::vector<float> q = Random(c.rows * c.kv_heads * c.group * c.dim);
    const auto want = Run(host(), &ForwardKernels::attention_f32, c, pages, q, c.rows);
    const auto got = Run(here(), &ForwardKernels::attention_f32, c, pages, q, c.rows);
    ExpectClose(want, got, 1e-5, 1e-6, Describe(c));
    if (!HasBf16(c.dim)) continue;
    const auto bf16 = Run(here(), &ForwardKernels::attention_bf16, c, pages, q, c.rows);
    ExpectClose(want, bf16, 2e-2, 3e-2, Describe(c) + " bf16");
  }
}

TEST_P(AttentionTest, ARowDoesNotDependOnTheOtherRows) {
  for (const Case& c : kCases) {
    const Pages pages(c, &rng());
    const std::vector<float> q = Random(c.rows * c.kv_heads * c.group * c.dim);
    for (const Attention attention : Attentions(c.dim)) {
      const std::vector<float> together = Run(here(), attention, c, pages, q, c.rows);
      for (const int64_t step : {1, 7, 32}) {
        ASSERT_EQ(Run(here(), attention, c, pages, q, step), together)
            << Describe(c) << ", " << step << " rows a call";
      }
    }
  }
}

TEST_P(AttentionTest, SeveralCallsOverWhatComesBeforeEqualOne) {
  // The first pages are read as prefixes, some at a time, and the rest as the sequence.
  for (const Case& c : {Case{64, 64, 2, 3, 192, 70}, Case{16, 64, 1, 4, 256, 16},
                        Case{64, 80, 1, 2, 128, 20}, Case{32, 96, 2, 1, 192, 64}}) {
    const Pages pages(c, &rng());
    const int64_t width = c.kv_heads * c.group * c.dim;
    const std::vector<float> q = Random(c.rows * width);
    for (const Attention attention : Attentions(c.dim)) {
      const std::vector<float> whole = Run(here(), attention, c, pages, q, c.rows);
      for (const std::vector<int64_t>& windows :
           {std::vector<int64_t>{c.first}, {64, c.first - 64}, {c.first - 64}, {64, 64}}) {
        Guarded<float> out(here(), c.rows * width);
        const PagedKv all = pages.In(here());
        const float* const queries = here().In(q);
        Guarded<std::byte> state(here(),
                                 static_cast<int64_t>(AttentionStateBytes(c.rows, c.group, c.dim)));
        for (int64_t h = 0; h < c.kv_heads; ++h) {
          AttentionArgs a;
          a.q = queries;
          a.out = out.get();
          a.rows = c.rows;
          a.q_stride = a.out_stride = width;
          a.kv_head = h;
          a.group = c.group;
          a.scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
          a.state = state.get();
          int64_t begin = 0;
          for (size_t w = 0; w < windows.size(); ++w) {
            a.prefix = all;
            a.prefix.pages += begin / c.block_tokens;
            a.prefix.k_offset += static_cast<size_t>(h) * all.head_stride;
            a.prefix.v_offset += static_cast<size_t>(h) * all.head_stride;
            a.prefix_rows = windows[w];
            begin += windows[w];
            a.kv = all;
            a.kv.pages += begin / c.block_tokens;
            a.first_position = c.first - begin;
            a.resume = w > 0;
            a.more = w + 1 < windows.size();
            a.scratch = here().Scratch(AttentionScratchBytes(c.rows, c.group, c.dim));
            here().Run(attention, a);
          }
        }
        const std::vector<float> got = out.Read();
        // The reference adds in another order, and the late backend does what the reference does.
        const std::string_view name = here().forward().name;
        if (name == "reference" || name == "late") {
          ExpectClose(whole, got, 1e-6, 1e-7, Describe(c));
        } else {
          ASSERT_EQ(got, whole) << Describe(c) << ", " << windows.size() << " calls";
        }
      }
    }
  }
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  const Case c{64, 64, 1, 2, 64, 10};
  const Pages pages(c, &rng());
  const std::vector<float> q = Random(c.rows * c.group * c.dim, 300.0f);
  const auto want = Run(host(), &ForwardKernels::attention_f32, c, pages, q, c.rows);
  const auto got = Run(here(), &ForwardKernels::attention_f32, c, pages, q, c.rows);
  ExpectClose(want, got, 1e-3, 1e-3, "large scores");
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
    const auto want = Run(host(), &ForwardKernels::attention_f32, last, pages, q, 1);
    const PagedKv kv = pages.In(here());
    const float* const queries = here().In(q);
    for (const int64_t split : {int64_t{16}, int64_t{50}, tokens}) {
      const int64_t parts = (tokens + split - 1) / split;
      Guarded<float> acc(here(), parts * heads * c.dim), max(here(), parts * heads),
          sum(here(), parts * heads);
      std::byte* const scratch = here().Scratch(AttentionPartScratchBytes(split, c.group, c.dim));
      for (int64_t p = 0; p < parts; ++p) {
        for (int64_t h = 0; h < c.kv_heads; ++h) {
          AttentionPartArgs a;
          a.kv = kv;
          a.q = queries;
          a.kv_head = h;
          a.group = c.group;
          a.begin = p * split;
          a.end = std::min(tokens, a.begin + split);
          a.scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
          const int64_t first = p * heads + h * c.group;
          a.acc = acc.get() + first * c.dim;
          a.max = max.get() + first;
          a.sum = sum.get() + first;
          a.scratch = scratch;
          here().Run(&ForwardKernels::attention_part, a);
        }
      }
      Guarded<float> got(here(), heads * c.dim);
      here().Run(&ForwardKernels::attention_merge,
                 {acc.get(), max.get(), sum.get(), got.get(), parts, heads, c.dim});
      ExpectClose(want, got.Read(), 1e-5, 1e-6, Describe(c) + ", split " + std::to_string(split));
    }
  }
}

// Rows of one sequence or of several: the part's tokens are read once for all.
TEST_P(AttentionTest, PartsOfRowsThatShareTokensAreThoseOfEachRowAlone) {
  for (const Case& c : kCases) {
    const Pages pages(c, &rng());
    const int64_t heads = c.kv_heads * c.group, width = heads * c.dim;
    const int64_t tokens = c.first + c.rows;
    constexpr int64_t kRows = 6;
    const std::vector<float> q = Random(kRows * width);
    const PagedKv kv = pages.In(here());
    const float* const queries = here().In(q);
    std::byte* const scratch =
        here().Scratch(AttentionPartScratchBytes(tokens, kRows * c.group, c.dim));
    const auto run = [&](int64_t step) {
      Guarded<float> acc(here(), kRows * width), max(here(), kRows * heads),
          sum(here(), kRows * heads);
      for (int64_t r = 0; r < kRows; r += step) {
        for (int64_t h = 0; h < c.kv_heads; ++h) {
          AttentionPartArgs a;
          a.kv = kv;
          a.q = queries + r * width;
          a.rows = step;
          a.q_stride = width;
          a.row_stride = heads;
          a.kv_head = h;
          a.group = c.group;
          a.begin = tokens / 3;  // Also inside a page.
          a.end = tokens;
          a.scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
          const int64_t first = r * heads + h * c.group;
          a.acc = acc.get() + first * c.dim;
          a.max = max.get() + first;
          a.sum = sum.get() + first;
          a.scratch = scratch;
          here().Run(&ForwardKernels::attention_part, a);
        }
      }
      std::vector<float> all = acc.Read();
      for (const float x : max.Read()) all.push_back(x);
      for (const float x : sum.Read()) all.push_back(x);
      return all;
    };
    const std::vector<float> alone = run(1);
    ASSERT_EQ(run(kRows), alone) << Describe(c);
    ASSERT_EQ(run(2), alone) << Describe(c);
  }
}

float FloatOf(uint16_t half) {
  InlineStream stream;
  float x;
  ReferenceForwardKernels().from_half(stream, {&half, &x, 1});
  return x;
}

// A sequence of which each head forgot other tokens: what is kept of the first `prefix` tokens lies
// in units of 32 rows, the rest in pages.
class RaggedCase {
 public:
  static constexpr int64_t kDim = 64, kHeads = 3, kGroup = 2, kUnit = 32, kPage = 64;

  RaggedCase(int64_t prefix, int64_t tail, const std::vector<int>& percent, std::mt19937* rng)
      : prefix_(prefix), tail_(tail), kept_(kHeads), units_(kHeads), data_(kHeads) {
    std::normal_distribution<float> normal(0.0f, 1.0f);
    all_.resize(static_cast<size_t>(2 * kHeads * (prefix + tail) * kDim));
    for (uint16_t& h : all_) h = testing::HalfOf(normal(*rng));
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t t = 0; t < prefix; ++t) {
        if (static_cast<int>((*rng)() % 100) < percent[static_cast<size_t>(h)])
          Of(kept_, h).push_back(t);
      }
      const int64_t rows = Rows(h);
      const int64_t units = (rows + kUnit - 1) / kUnit;
      // Numbers behind the last row must not matter.
      Of(data_, h).assign(static_cast<size_t>(units * 2 * kUnit * kDim), 0x7e00);
      for (int64_t u = 0; u < units; ++u) {
        Of(units_, h).push_back(
            reinterpret_cast<const std::byte*>(Of(data_, h).data() + u * 2 * kUnit * kDim));
      }
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t t = Of(kept_, h)[static_cast<size_t>(r)];
        std::copy_n(At(h, t, false), kDim, const_cast<uint16_t*>(Prefix(h).K(0, r)));
        std::copy_n(At(h, t, true), kDim, const_cast<uint16_t*>(Prefix(h).V(0, r)));
      }
    }
    const int64_t pages = (tail + kPage - 1) / kPage;
    page_data_.assign(static_cast<size_t>(pages * 2 * kHeads * kPage * kDim), 0x7e00);
    for (int64_t p = 0; p < pages; ++p) {
      pages_.push_back(
          reinterpret_cast<const std::byte*>(page_data_.data() + p * 2 * kHeads * kPage * kDim));
    }
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t t = 0; t < tail; ++t) {
        std::copy_n(At(h, prefix + t, false), kDim, const_cast<uint16_t*>(Tail().K(h, t)));
        std::copy_n(At(h, prefix + t, true), kDim, const_cast<uint16_t*>(Tail().V(h, t)));
      }
    }
  }

  int64_t Rows(int64_t head) const { return std::ssize(kept_[static_cast<size_t>(head)]); }
  int64_t MostRows() const { return std::max({Rows(0), Rows(1), Rows(2)}); }
  // In the memory of a device: the rows of each head, and the tail.
  std::vector<PagedKv> Prefixes(Device& device) const {
    std::vector<PagedKv> all;
    for (int64_t h = 0; h < kHeads; ++h) {
      all.push_back(device.In(Prefix(h), Rows(h), 2 * kUnit * kDim * sizeof(uint16_t)));
    }
    return all;
  }
  PagedKv Tail(Device& device) const {
    return device.In(Tail(), tail_, 2 * kHeads * kPage * kDim * sizeof(uint16_t));
  }

  PagedKv Prefix(int64_t head) const {
    PagedKv kv;
    kv.pages = units_[static_cast<size_t>(head)].data();
    kv.block_tokens = kUnit;
    kv.head_dim = kDim;
    kv.v_offset = kUnit * kDim * 2;
    return kv;
  }
  PagedKv Tail() const {
    PagedKv kv;
    kv.pages = pages_.data();
    kv.block_tokens = kPage;
    kv.head_dim = kDim;
    kv.head_stride = kPage * kDim * 2;
    kv.v_offset = kv.head_stride * kHeads;
    return kv;
  }
  static float Scale() { return 1.0f / std::sqrt(static_cast<float>(kDim)); }

  // Attention of query head `query` at token `row` of the tail over the whole sequence, where what
  // the head forgot has a score of minus infinity. In double.
  std::vector<float> Masked(int64_t query, int64_t row, const float* q) const {
    const int64_t h = query / kGroup;
    std::vector<double> score(static_cast<size_t>(prefix_ + row + 1),
                              -std::numeric_limits<double>::infinity());
    const auto dot = [&](int64_t t) {
      double s = 0;
      for (int64_t d = 0; d < kDim; ++d) s += double{q[d]} * double{FloatOf(At(h, t, false)[d])};
      return s * double{Scale()};
    };
    for (const int64_t t : kept_[static_cast<size_t>(h)]) score[static_cast<size_t>(t)] = dot(t);
    for (int64_t t = prefix_; t <= prefix_ + row; ++t) score[static_cast<size_t>(t)] = dot(t);
    const double max = *std::max_element(score.begin(), score.end());
    std::vector<double> out(kDim);
    double sum = 0;
    for (int64_t t = 0; t <= prefix_ + row; ++t) {
      const double p = std::exp(score[static_cast<size_t>(t)] - max);
      sum += p;
      for (size_t d = 0; d < kDim; ++d) out[d] += p * double{FloatOf(At(h, t, true)[d])};
    }
    std::vector<float> result;
    for (const double x : out) result.push_back(static_cast<float>(x / sum));
    return result;
  }

 private:
  template <typename T>
  static T& Of(std::vector<T>& all, int64_t head) {
    return all[static_cast<size_t>(head)];
  }
  const uint16_t* At(int64_t head, int64_t token, bool v) const {
    return all_.data() + (((v ? kHeads : 0) + head) * (prefix_ + tail_) + token) * kDim;
  }

  const int64_t prefix_, tail_;
  std::vector<uint16_t> all_;  // [K, V][head][token][dim]
  std::vector<std::vector<int64_t>> kept_;
  std::vector<std::vector<const std::byte*>> units_;
  std::vector<std::vector<uint16_t>> data_;
  std::vector<const std::byte*> pages_;
  std::vector<uint16_t> page_data_;
};

TEST_P(AttentionTest, ARaggedPrefixEqualsAMaskInPrefill) {
  constexpr int64_t kQueries = RaggedCase::kHeads * RaggedCase::kGroup, kDim = RaggedCase::kDim;
  for (const auto& percent : {std::vector<int>{40, 0, 100}, {3, 60, 25}}) {
    for (const int64_t rows : {1, 37, 130}) {
      const RaggedCase c(200, rows, percent, &rng());
      const int64_t n = rows * kQueries * kDim;
      const std::vector<float> q = Random(n);
      const std::vector<PagedKv> prefixes = c.Prefixes(here());
      const PagedKv tail = c.Tail(here());
      const float* const queries = here().In(q);
      for (const Attention attention : Attentions(kDim)) {
        const bool bf16 = attention == &ForwardKernels::attention_bf16;
        Guarded<float> out(here(), n);
        for (const int64_t step : {rows, int64_t{64}}) {
          std::byte* const scratch =
              here().Scratch(AttentionScratchBytes(step, RaggedCase::kGroup, kDim));
          for (int64_t r = 0; r < rows; r += step) {
            for (int64_t h = 0; h < RaggedCase::kHeads; ++h) {
              AttentionArgs a;
              a.kv = tail;
              a.prefix = prefixes[static_cast<size_t>(h)];
              a.prefix_rows = c.Rows(h);
              a.q = queries + r * kQueries * kDim;
              a.out = out.get() + r * kQueries * kDim;
              a.rows = std::min(step, rows - r);
              a.q_stride = a.out_stride = kQueries * kDim;
              a.first_position = r;
              a.kv_head = h;
              a.group = RaggedCase::kGroup;
              a.scale = RaggedCase::Scale();
              a.scratch = scratch;
              here().Run(attention, a);
            }
          }
          const std::vector<float> got = out.Read();
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t query = 0; query < kQueries; ++query) {
              const int64_t at = (r * kQueries + query) * kDim;
              const std::vector<float> want = c.Masked(query, r, q.data() + at);
              const std::span<const float> have(got.data() + at, static_cast<size_t>(kDim));
              ExpectClose(want, have, bf16 ? 2e-2 : 1e-5, bf16 ? 3e-2 : 1e-5,
                          "row " + std::to_string(r) + ", head " + std::to_string(query));
            }
          }
        }
      }
    }
  }
}

TEST_P(AttentionTest, ARaggedPrefixEqualsAMaskInEveryDecodedToken) {
  constexpr int64_t kQueries = RaggedCase::kHeads * RaggedCase::kGroup, kDim = RaggedCase::kDim;
  constexpr int64_t kDecoded = 130, kSplit = 96;
  const RaggedCase c(500, kDecoded, {30, 0, 70}, &rng());
  const std::vector<PagedKv> prefixes = c.Prefixes(here());
  const PagedKv tail = c.Tail(here());
  std::byte* const scratch =
      here().Scratch(AttentionPartScratchBytes(kSplit, RaggedCase::kGroup, kDim));
  for (int64_t row = 0; row < kDecoded; ++row) {
    const std::vector<float> q = Random(kQueries * kDim);
    const int64_t prefix_parts = (c.MostRows() + kSplit - 1) / kSplit;
    const int64_t parts = prefix_parts + (row + 1 + kSplit - 1) / kSplit;
    const float* const queries = here().In(q);
    Guarded<float> acc(here(), parts * kQueries * kDim), max(here(), parts * kQueries),
        sum(here(), parts * kQueries);
    for (int64_t p = 0; p < parts; ++p) {
      for (int64_t h = 0; h < RaggedCase::kHeads; ++h) {
        const bool prefix = p < prefix_parts;
        AttentionPartArgs a;
        a.kv = prefix ? prefixes[static_cast<size_t>(h)] : tail;
        a.q = queries;
        a.kv_head = h;
        a.group = RaggedCase::kGroup;
        a.begin = (prefix ? p : p - prefix_parts) * kSplit;
        a.end = std::max(a.begin, std::min(a.begin + kSplit, prefix ? c.Rows(h) : row + 1));
        a.scale = RaggedCase::Scale();
        const int64_t first = p * kQueries + h * RaggedCase::kGroup;
        a.acc = acc.get() + first * kDim;
        a.max = max.get() + first;
        a.sum = sum.get() + first;
        a.scratch = scratch;
        here().Run(&ForwardKernels::attention_part, a);
      }
    }
    Guarded<float> out(here(), kQueries * kDim);
    here().Run(&ForwardKernels::attention_merge,
               {acc.get(), max.get(), sum.get(), out.get(), parts, kQueries, kDim});
    const std::vector<float> got = out.Read();
    for (int64_t query = 0; query < kQueries; ++query) {
      const std::vector<float> want = c.Masked(query, row, q.data() + query * kDim);
      ExpectClose(want, std::span(got).subspan(static_cast<size_t>(query * kDim), kDim), 1e-5, 1e-5,
                  "token " + std::to_string(row) + ", head " + std::to_string(query));
    }
  }
}

TEST_P(AttentionTest, MergeIgnoresEmptyParts) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> acc = {0, 0, 2, 4, 0, 0}, max = {-inf, 1, -inf}, sum = {0, 2, 0};
  Guarded<float> out(here(), 2);
  here().Run(&ForwardKernels::attention_merge,
             {here().In(acc), here().In(max), here().In(sum), out.get(), 3, 1, 2});
  EXPECT_EQ(out.Read(), (std::vector<float>{1.0f, 2.0f}));
}

INSTANTIATE_TEST_SUITE_P(All, AttentionTest, ::testing::ValuesIn(testing::BackendNames()),
                         testing::BackendCaseName);

}  // namespace
}  // namespace cairn::kernels
