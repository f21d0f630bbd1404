// Reading a context by rows: every implementation against the reference.

#include <algorithm>
#include <limits>

#include "tests/conformance/kernels/case.h"

namespace cairn::kernels {
namespace {

using testing::Device;
using testing::ExpectClose;
using testing::Guarded;

constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Case {
  CopyForm form;
  int bits;
  int64_t dim, rows, group;
};

const Case kCases[] = {
    {CopyForm::kTurbo, 3, 64, 100, 3}, {CopyForm::kTurbo, 2, 64, 33, 3},
    {CopyForm::kTurbo, 4, 64, 17, 1},  {CopyForm::kTurbo, 3, 128, 64, 8},
    {CopyForm::kTurbo, 2, 256, 20, 2}, {CopyForm::kTurbo, 3, 512, 5, 5},
    {CopyForm::kInt8, 8, 64, 50, 3},   {CopyForm::kInt8, 8, 80, 31, 2},
    {CopyForm::kInt4, 4, 64, 50, 3},   {CopyForm::kInt4, 4, 160, 16, 4},
    {CopyForm::kHalf, 16, 64, 100, 3}, {CopyForm::kHalf, 16, 19, 40, 7},
    {CopyForm::kHalf, 16, 1024, 3, 1},
};

std::string Describe(const Case& c) {
  return "form " + std::to_string(static_cast<int>(c.form)) + ", bits " + std::to_string(c.bits) +
         ", dim " + std::to_string(c.dim) + ", rows " + std::to_string(c.rows) + ", group " +
         std::to_string(c.group);
}

// Random rows, stored by the reference's encoders.
class Stored {
 public:
  Stored(const Case& c, std::mt19937* rng) : c_(c), signs_(static_cast<size_t>(c.dim)) {
    std::normal_distribution<float> normal(0.0f, 1.0f);
    halves_.resize(static_cast<size_t>(c.rows * c.dim));
    for (uint16_t& h : halves_) h = testing::HalfOf(normal(*rng));
    for (uint32_t& s : signs_) s = (*rng)() % 2 != 0 ? 0x80000000u : 0;
    const CopyRows shape = Shape();
    bytes_.resize(static_cast<size_t>(c.rows * shape.row_bytes()));
    const HalfRows x{halves_.data(), c.rows, c.dim, c.dim};
    const CodecKernels& k = ReferenceCodecKernels();
    InlineStream stream;
    uint32_t faults = 0;
    switch (c.form) {
      case CopyForm::kHalf:
        std::memcpy(bytes_.data(), halves_.data(), bytes_.size());
        break;
      case CopyForm::kInt8:
        k.int8_encode(stream, {x, {kCopyGroup}, bytes_.data(), &faults});
        break;
      case CopyForm::kInt4:
        k.int4_token_encode(stream, {x, {kCopyGroup}, bytes_.data(), &faults});
        break;
      case CopyForm::kTurbo:
        k.turbo_encode(stream, {x, {c.bits, signs_.data()}, bytes_.data(), &faults});
        break;
    }
    EXPECT_EQ(faults, 0u);
  }

  CopyRows In(Device& device) const {
    CopyRows rows = Shape();
    rows.signs = device.In(signs_);
    rows.data = device.In(bytes_);
    return rows;
  }
  // The numbers that the codec decodes, in binary16.
  std::vector<float> Decoded() const {
    std::vector<uint16_t> out(halves_.size());
    const MutableHalfRows y{out.data(), c_.rows, c_.dim, c_.dim};
    const CodecKernels& k = ReferenceCodecKernels();
    InlineStream stream;
    uint32_t faults = 0;
    switch (c_.form) {
      case CopyForm::kHalf:
        out = halves_;
        break;
      case CopyForm::kInt8:
        k.int8_decode(stream, {bytes_.data(), {kCopyGroup}, y, &faults});
        break;
      case CopyForm::kInt4:
        k.int4_token_decode(stream, {bytes_.data(), {kCopyGroup}, y, &faults});
        break;
      case CopyForm::kTurbo:
        k.turbo_decode(stream, {bytes_.data(), {c_.bits, signs_.data()}, y, &faults});
        break;
    }
    EXPECT_EQ(faults, 0u);
    std::vector<float> floats(out.size());
    ReferenceForwardKernels().from_half(
        stream, {out.data(), floats.data(), static_cast<int64_t>(out.size())});
    return floats;
  }

 private:
  CopyRows Shape() const { return {.form = c_.form, .bits = c_.bits, .dim = c_.dim}; }

  const Case c_;
  std::vector<uint32_t> signs_;
  std::vector<uint16_t> halves_;
  std::vector<std::byte> bytes_;
};

class ReadingTest : public testing::FamilyTest<&Backend::reading> {
 protected:
  static std::vector<float> Logits(Device& device, const Case& c, const Stored& keys,
                                   const std::vector<float>& q, int64_t step) {
    const int64_t stride = c.rows + 3;
    Guarded<float> out(device, c.group * stride, 7.0f);
    RowLogitsArgs a;
    a.keys = keys.In(device);
    a.q = device.In(q);
    a.q_stride = c.dim + 1;
    a.group = c.group;
    a.scale = 0.125f;
    a.logits = out.get();
    a.stride = stride;
    a.scratch = device.Scratch(ReadingScratchBytes(c.group, c.dim));
    for (a.begin = 0; a.begin < c.rows; a.begin += step) {
      a.end = std::min(c.rows, a.begin + step);
      device.Run(&ReadingKernels::row_logits, a);
    }
    return out.Read();
  }

  struct Part {
    std::vector<float> acc, max, sum;
  };
  static Part Attend(Device& device, const Case& c, const Stored& values,
                     const std::vector<float>& logits, int64_t begin, int64_t end) {
    Guarded<float> x(device, logits), acc(device, c.group * c.dim), max(device, c.group),
        sum(device, c.group);
    AttendRowsArgs a;
    a.values = values.In(device);
    a.logits = x.get();
    a.stride = c.rows;
    a.group = c.group;
    a.begin = begin;
    a.end = end;
    a.acc = acc.get();
    a.max = max.get();
    a.sum = sum.get();
    a.scratch = device.Scratch(ReadingScratchBytes(c.group, c.dim));
    device.Run(&ReadingKernels::attend_rows, a);
    return {acc.Read(), max.Read(), sum.Read()};
  }

  struct Top {
    std::vector<int32_t> rows;
    std::vector<float> scores;
  };
  static Top Choose(Device& device, const std::vector<float>& logits, int64_t group, int64_t n,
                    int64_t count) {
    Guarded<float> scores(device, n);
    Guarded<int32_t> rows(device, std::min(count, n));
    TopRowsArgs a;
    a.logits = device.In(logits);
    a.stride = n;
    a.group = group;
    a.n = n;
    a.count = count;
    a.scores = scores.get();
    a.rows = rows.get();
    a.scratch = device.Scratch(TopRowsScratchBytes(n));
    device.Run(&ReadingKernels::top_rows, a);
    return {rows.Read(), scores.Read()};
  }
};

TEST_P(ReadingTest, LogitsAreThoseOfTheDecodedRows) {
  for (const Case& c : kCases) {
    const Stored keys(c, &rng());
    const std::vector<float> q = Random(c.group * (c.dim + 1));
    const std::vector<float> want = Logits(host(), c, keys, q, c.rows);
    const std::vector<float> got = Logits(here(), c, keys, q, c.rows);
    ExpectClose(want, got, 1e-5, 1e-5, Describe(c));
    // In pieces: the numbers next to them stay.
    ExpectClose(want, Logits(here(), c, keys, q, 7), 1e-5, 1e-5, Describe(c) + " by sevens");
    const std::vector<float> rows = keys.Decoded();
    for (int64_t g = 0; g < c.group; ++g) {
      for (int64_t r = 0; r < c.rows; ++r) {
        double dot = 0;
        for (int64_t d = 0; d < c.dim; ++d) {
          dot += static_cast<double>(q[static_cast<size_t>(g * (c.dim + 1) + d)]) *
                 static_cast<double>(rows[static_cast<size_t>(r * c.dim + d)]);
        }
        // Decoded rows are rounded to binary16.
        ASSERT_NEAR(got[static_cast<size_t>(g * (c.rows + 3) + r)], dot * 0.125,
                    1e-3 * std::sqrt(static_cast<double>(c.dim)))
            << Describe(c);
      }
    }
  }
}

TEST_P(ReadingTest, AttentionOverTheCopyIsAPart) {
  for (const Case& c : kCases) {
    if (c.dim > kMaxHeadDim) continue;
    const Stored values(c, &rng());
    std::vector<float> logits = Random(c.group * c.rows, 3.0f);
    for (size_t i = 0; i < logits.size(); i += 5) logits[i] = kNone;
    const int64_t begin = c.rows / 4;
    const Part want = Attend(host(), c, values, logits, begin, c.rows);
    const Part got = Attend(here(), c, values, logits, begin, c.rows);
    ExpectClose(want.max, got.max, 0, 0, Describe(c));
    ExpectClose(want.sum, got.sum, 1e-5, 1e-6, Describe(c));
    ExpectClose(want.acc, got.acc, 1e-4, 1e-4, Describe(c));
  }
}

TEST_P(ReadingTest, RowsThatAreTakenOutCountAsNothing) {
  const Case c{CopyForm::kTurbo, 3, 64, 40, 2};
  const Stored values(c, &rng());
  std::vector<float> logits(static_cast<size_t>(c.group * c.rows), kNone);
  const Part none = Attend(here(), c, values, logits, 0, c.rows);
  EXPECT_EQ(none.max, std::vector<float>(2, kNone));
  EXPECT_EQ(none.sum, std::vector<float>(2, 0.0f));
  EXPECT_EQ(none.acc, std::vector<float>(128, 0.0f));
  // One row alone: the sum is that row.
  logits[7] = logits[static_cast<size_t>(c.rows) + 7] = -4.0f;
  const Part one = Attend(here(), c, values, logits, 0, c.rows);
  EXPECT_EQ(one.sum, std::vector<float>(2, 1.0f));
  const std::vector<float> rows = values.Decoded();
  for (size_t d = 0; d < 64; ++d) EXPECT_NEAR(one.acc[d], rows[7 * 64 + d], 3e-3) << d;
}

TEST_P(ReadingTest, TheRowsWithTheLargestSharesAreChosen) {
  for (const int64_t n : {1, 15, 16, 100, 5000}) {
    for (const int64_t count : {int64_t{0}, int64_t{1}, n / 3, n, n + 5}) {
      const std::vector<float> logits = Random(3 * n, 4.0f);
      const Top want = Choose(host(), logits, 3, n, count);
      const Top got = Choose(here(), logits, 3, n, count);
      ExpectClose(want.scores, got.scores, 1e-5, 1e-30, "scores");
      // Shares that differ by rounding only may change places.
      const auto sum = [](const Top& top) {
        double all = 0;
        for (const int32_t r : top.rows) all += top.scores[static_cast<size_t>(r)];
        return all;
      };
      ASSERT_EQ(want.rows.size(), got.rows.size());
      ASSERT_NEAR(sum(want), sum(got), 1e-5) << n << ", " << count;
      ASSERT_TRUE(std::ranges::is_sorted(got.rows));
      ASSERT_EQ(std::ranges::adjacent_find(got.rows), got.rows.end()) << "a row twice";
    }
  }
}

// A head with a flat distribution must not outvote one that looks at a single row.
TEST_P(ReadingTest, HeadsOfAGroupAreComparedByShares) {
  std::vector<float> logits(20, 10.0f);  // Head 0: each row has a tenth.
  for (size_t i = 10; i < 20; ++i) logits[i] = i == 14 ? 3.0f : -3.0f;
  EXPECT_EQ(Choose(here(), logits, 2, 10, 1).rows, (std::vector<int32_t>{4}));
}

TEST_P(ReadingTest, OfEqualSharesTheLowerRowsAreChosen) {
  std::vector<float> logits(300, 1.0f);
  logits[200] = 2.0f;
  EXPECT_EQ(Choose(here(), logits, 1, 300, 4).rows, (std::vector<int32_t>{0, 1, 2, 200}));
  logits[0] = logits[1] = kNone;
  EXPECT_EQ(Choose(here(), logits, 1, 300, 4).rows, (std::vector<int32_t>{2, 3, 4, 200}));
}

INSTANTIATE_TEST_SUITE_P(Backends, ReadingTest, ::testing::ValuesIn(testing::BackendNames()),
                         testing::BackendCaseName);

}  // namespace
}  // namespace cairn::kernels
