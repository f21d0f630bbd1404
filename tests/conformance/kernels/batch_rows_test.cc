// Operations on the rows of a batch, on every backend that has them: exact where each number is
// made of few others, else within bounds of the reference.

#include <limits>

#include "tests/conformance/kernels/batch_case.h"

namespace cairn::kernels {
namespace {

using testing::BackendCaseName;
using testing::BatchTest;
using testing::Bfloat16s;
using testing::ExpectClose;
using testing::FloatsOfBfloat16;
using testing::Guarded;
using testing::HalfOf;
using testing::kBfloat16Rounding;
using testing::kWeightTypes;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using BatchRowsTest = BatchTest;

// A matrix of a type, in the file's order, and as floats.
struct Weights {
  Weights(WeightType type, int64_t rows, int64_t cols, std::mt19937* rng)
      : bytes(static_cast<size_t>(rows * RowBytes(type, cols)) + 1),
        floats(static_cast<size_t>(rows * cols)) {
    // It begins at an odd address.
    testing::FillWeights(type, 0.1f, std::span(bytes).subspan(1), rng);
    for (int64_t r = 0; r < rows; ++r) {
      DequantiseRow(type, bytes.data() + 1 + r * RowBytes(type, cols), floats.data() + r * cols,
                    cols);
    }
  }
  std::vector<std::byte> bytes;
  std::vector<float> floats;
};

int64_t SomeColumns(WeightType type) { return BlockElements(type) == 1 ? 45 : 1280; }

TEST_P(BatchRowsTest, EmbeddingsAreThoseOfDequantiseRowToTheLastBit) {
  constexpr int64_t kWords = 11, kPad = 3;
  const std::vector<int32_t> tokens = {10, 0, 3, 3, 7};
  for (const WeightType type : kWeightTypes) {
    const int64_t cols = SomeColumns(type), stride = (cols + kPad + 3) / 4 * 4;
    const Weights w(type, kWords, cols, &rng());
    const auto rows = std::ssize(tokens);
    Guarded<float> got(here(), rows * stride, -1.0f);
    here().Run(&batch::ForwardKernels::embed,
               {type, here().In(w.bytes) + 1, here().In(tokens), got.get(), rows, cols, stride});
    std::vector<float> want(static_cast<size_t>(rows * stride), -1.0f);
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(w.floats.begin() + tokens[static_cast<size_t>(r)] * cols, cols,
                  want.begin() + r * stride);
    }
    EXPECT_EQ(got.Read(), want) << Name(type);
  }
}

TEST_P(BatchRowsTest, DequantisedWeightsAreTheRoundedOnesInTheOrderThatIsAskedFor) {
  constexpr int64_t kRows = 6;
  const std::vector<int32_t> order = {5, 0, 2, 1};
  for (const WeightType type : kWeightTypes) {
    const int64_t cols = SomeColumns(type), stride = (cols + 7) / 8 * 8;
    const Weights w(type, kRows, cols, &rng());
    const std::byte* const bytes = here().In(w.bytes) + 1;
    const std::vector<uint16_t> rounded = Bfloat16s(w.floats);
    for (const bool reorders : {false, true}) {
      const int64_t rows = reorders ? std::ssize(order) : kRows;
      Guarded<uint16_t> got(here(), rows * stride, uint16_t{77});
      here().Run(
          &batch::ForwardKernels::dequantise,
          {type, bytes, reorders ? here().In(order) : nullptr, got.get(), rows, cols, stride});
      std::vector<uint16_t> want(static_cast<size_t>(rows * stride), 77);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t source = reorders ? order[static_cast<size_t>(r)] : r;
        std::copy_n(rounded.begin() + source * cols, cols, want.begin() + r * stride);
      }
      EXPECT_EQ(got.Read(), want) << Name(type);
    }
  }
}

TEST_P(BatchRowsTest, RmsNormIsTheReferencesButForTheRounding) {
  for (const int64_t cols : {8, 64, 576, 4104}) {
    for (const bool picks : {false, true}) {
      constexpr int64_t kRows = 3;
      const int64_t stride = cols + 4;
      const std::vector<float> x = Random(kRows * stride), weight = Random(cols);
      const std::vector<int32_t> picked = {2, 0};
      const int64_t rows = picks ? std::ssize(picked) : kRows;
      Guarded<uint16_t> got(here(), rows * cols);
      here().Run(&batch::ForwardKernels::rms_norm,
                 {here().In(x), picks ? here().In(picked) : nullptr, here().In(weight), got.get(),
                  rows, cols, stride, cols, 1e-5f});
      std::vector<float> want(static_cast<size_t>(kRows * cols));
      InlineStream stream;
      ReferenceForwardKernels().rms_norm(
          stream, {x.data(), weight.data(), want.data(), kRows, cols, stride, cols, 1e-5f});
      if (picks) {
        std::vector<float> some(want.begin() + 2 * cols, want.end());
        some.insert(some.end(), want.begin(), want.begin() + cols);
        want = some;
      }
      ExpectClose(want, FloatsOfBfloat16(got.Read()), kBfloat16Rounding + 2e-6, 1e-7,
                  "cols " + std::to_string(cols));
    }
  }
}

TEST_P(BatchRowsTest, RmsNormSpreadsNanOverItsRowOnly) {
  std::vector<float> x = Random(3 * 40);
  x[50] = kNan;
  Guarded<uint16_t> got(here(), 120);
  here().Run(&batch::ForwardKernels::rms_norm,
             {here().In(x), nullptr, here().In(Random(40)), got.get(), 3, 40, 40, 40, 1e-5f});
  const std::vector<float> y = FloatsOfBfloat16(got.Read());
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 40 == 1) << i;
}

TEST_P(BatchRowsTest, AddingRoundsOnceAndTouchesNothingBehind) {
  for (const int64_t n : {0, 1, 7, 8, 2048, 4099}) {
    const std::vector<float> x = Random(n), y = Random(n, 1e-3f);
    Guarded<float> got(here(), x);
    here().Run(&batch::ForwardKernels::add, {got.get(), here().In(y), n});
    std::vector<float> want = x;
    for (size_t i = 0; i < want.size(); ++i) want[i] += y[i];
    EXPECT_EQ(got.Read(), want) << n;
  }
}

TEST_P(BatchRowsTest, SwiGluIsTheReferencesButForTheRounding) {
  for (const int64_t cols : {8, 56, 2304}) {
    constexpr int64_t kRows = 2;
    // Gate and up are the halves of one product's rows.
    const int64_t in = 2 * cols;
    std::vector<float> x = Random(kRows * in, 20.0f);
    const std::vector<float> extreme = {kNan, kInf, 1000.0f, -1000.0f, 0.0f, -0.0f, 88.5f, -88.5f};
    std::copy(extreme.begin(), extreme.end(), x.begin());
    const float* const both = here().In(x);
    Guarded<uint16_t> got(here(), kRows * cols);
    here().Run(&batch::ForwardKernels::swiglu,
               {both, both + cols, got.get(), kRows, cols, in, cols});
    std::vector<float> want(static_cast<size_t>(kRows * cols));
    InlineStream stream;
    for (int64_t r = 0; r < kRows; ++r) {
      ReferenceForwardKernels().swiglu(
          stream, {x.data() + r * in, x.data() + r * in + cols, want.data() + r * cols, cols});
    }
    // Below the least normal number float32 has fewer bits than the reference's double.
    ExpectClose(want, FloatsOfBfloat16(got.Read()), kBfloat16Rounding + 2e-6, 1e-37,
                "cols " + std::to_string(cols));
  }
}

TEST_P(BatchRowsTest, ArgMaxTakesTheFirstAndIgnoresNan) {
  const auto arg_max = [this](const std::vector<float>& x, int64_t rows, int64_t n) {
    Guarded<int32_t> index(here(), rows, -7);
    here().Run(&batch::ForwardKernels::arg_max, {here().In(x), index.get(), rows, n, n});
    return index.Read();
  };
  using Places = std::vector<int32_t>;
  EXPECT_EQ(arg_max({}, 1, 0), Places{-1});
  EXPECT_EQ(arg_max(std::vector<float>(40, kNan), 1, 40), Places{-1});
  EXPECT_EQ(arg_max(std::vector<float>(640, -kInf), 2, 320), (Places{0, 0}));
  for (const int64_t n : {1, 5, 257, 4915}) {
    std::vector<float> x = Random(2 * n);
    int64_t want = 0;
    InlineStream stream;
    ReferenceForwardKernels().arg_max(stream, {x.data() + n, n, &want});
    const auto half = static_cast<int32_t>(n / 2);
    x[static_cast<size_t>(half)] = x[static_cast<size_t>(n - 1)] = 100.0f;
    x[0] = n > 1 ? kNan : 100.0f;
    EXPECT_EQ(arg_max(x, 2, n), (Places{half, static_cast<int32_t>(want)})) << n;
  }
}

// ---- rotations ----

// Products and sums are rounded to float32 one by one: doubles hold each of them exactly.
float Rounded(double x) { return static_cast<float>(x); }
float Minus(float x, float c, float y, float s) {
  return Rounded(double{Rounded(double{x} * c)} - Rounded(double{y} * s));
}
float Plus(float x, float c, float y, float s) {
  return Rounded(double{Rounded(double{x} * c)} + Rounded(double{y} * s));
}

void Rotate(const float* cosine, const float* sine, int64_t rope_dim, std::vector<float>* head) {
  const auto half = static_cast<size_t>(rope_dim / 2);
  for (size_t p = 0; p < half; ++p) {
    const float x = (*head)[p], y = (*head)[p + half];
    (*head)[p] = Minus(x, cosine[p], y, sine[p]);
    (*head)[p + half] = Plus(y, cosine[p], x, sine[p]);
  }
}

// Cosines and sines of some positions' angles.
struct Angles {
  Angles(int64_t positions, int64_t rope_dim, int64_t step = 1) {
    for (int64_t p = 0; p < positions; ++p) {
      for (int64_t i = 0; i < rope_dim / 2; ++i) {
        const double angle =
            static_cast<double>(p * step) *
            std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(rope_dim));
        cosine.push_back(static_cast<float>(std::cos(angle)));
        sine.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  std::vector<float> cosine, sine;
};

TEST_P(BatchRowsTest, RotatedKeysAndValuesGoToTheirPagesAndNowhereElse) {
  struct RotationCase {
    int32_t heads, kv_heads, dim, rope;
  };
  for (const auto& [heads, kv_heads, dim, rope] :
       {RotationCase{3, 1, 64, 64}, RotationCase{4, 2, 128, 128}, RotationCase{2, 2, 80, 32}}) {
    constexpr int64_t kTokens = 16, kPageCount = 3;
    const std::vector<std::pair<int64_t, int32_t>> slots = {{2, 15}, {0, 0}, {0, 1}, {1, 7}};
    const std::vector<int32_t> positions = {31, 0, 1, 23};
    const auto rows = std::ssize(slots);
    const int64_t width = (heads + 2 * kv_heads) * dim;
    const int64_t head_numbers = kTokens * dim, page_numbers = 2 * kv_heads * head_numbers;
    const std::vector<float> qkv = Random(rows * width, 3.0f);
    const Angles angles(32, rope);
    Guarded<uint16_t> pages(here(), kPageCount * page_numbers, uint16_t{0x5a5a});
    Guarded<uint16_t> q_out(here(), rows * heads * dim);
    std::vector<batch::KvPlace> places;
    for (size_t r = 0; r < slots.size(); ++r) {
      places.push_back({reinterpret_cast<std::byte*>(pages.get() + slots[r].first * page_numbers),
                        slots[r].second, positions[r]});
    }
    const float* const in = here().In(qkv);
    batch::RotateAndStoreArgs a;
    a.q = in;
    a.k = in + heads * dim;
    a.v = in + (heads + kv_heads) * dim;
    a.q_out = q_out.get();
    a.places = here().In(places);
    a.cosine = here().In(angles.cosine);
    a.sine = here().In(angles.sine);
    a.rows = rows;
    a.in_stride = width;
    a.heads = heads;
    a.kv_heads = kv_heads;
    a.head_dim = dim;
    a.rope_dim = rope;
    a.head_stride = static_cast<size_t>(head_numbers) * 2;
    a.v_offset = a.head_stride * static_cast<size_t>(kv_heads);
    here().Run(&batch::ForwardKernels::rotate_and_store, a);

    std::vector<uint16_t> want_q,
        want_pages(static_cast<size_t>(kPageCount * page_numbers), 0x5a5a);
    for (int64_t r = 0; r < rows; ++r) {
      const auto [page, token] = slots[static_cast<size_t>(r)];
      const int64_t angle = positions[static_cast<size_t>(r)] * (rope / 2);
      for (int64_t h = 0; h < heads + 2 * kv_heads; ++h) {
        std::vector<float> head(qkv.begin() + r * width + h * dim,
                                qkv.begin() + r * width + (h + 1) * dim);
        if (h < heads + kv_heads) {
          Rotate(angles.cosine.data() + angle, angles.sine.data() + angle, rope, &head);
        }
        const std::vector<uint16_t> halves = testing::Halves(head);
        if (h < heads) {
          want_q.insert(want_q.end(), halves.begin(), halves.end());
        } else {
          std::copy(
              halves.begin(), halves.end(),
              want_pages.begin() + page * page_numbers + (h - heads) * head_numbers + token * dim);
        }
      }
    }
    EXPECT_EQ(q_out.Read(), want_q) << "head size " << dim;
    EXPECT_EQ(pages.Read(), want_pages) << "head size " << dim;
  }
}

TEST_P(BatchRowsTest, TurnedKeysAreThoseOfTheirNewPosition) {
  constexpr int64_t kHeadDim = 64, kRope = 48, kStride = 72, kKeys = 21;
  const Angles by(3, kRope, 5);
  const std::vector<uint16_t> before = testing::Halves(Random(2 * kKeys * kStride));
  Guarded<uint16_t> keys(here(), before);
  const std::vector<batch::KeyRun> runs = {{keys.get(), kStride, 5, 2},
                                           {keys.get() + kKeys * kStride, kStride, kKeys, 1},
                                           {keys.get(), kStride, 0, 0}};
  here().Run(&batch::ForwardKernels::turn_keys, {here().In(runs), std::ssize(runs), kKeys,
                                                 here().In(by.cosine), here().In(by.sine), kRope});
  std::vector<uint16_t> want = before;
  for (size_t run = 0; run < 2; ++run) {
    for (int64_t k = 0; k < runs[run].count; ++k) {
      const auto at = before.begin() + (static_cast<int64_t>(run) * kKeys + k) * kStride;
      std::vector<float> head = testing::FloatsOfHalves({at, at + kHeadDim});
      const int64_t angle = runs[run].turn * kRope / 2;
      Rotate(by.cosine.data() + angle, by.sine.data() + angle, kRope, &head);
      const std::vector<uint16_t> halves = testing::Halves(head);
      std::copy(halves.begin(), halves.end(),
                want.begin() + (static_cast<int64_t>(run) * kKeys + k) * kStride);
    }
  }
  EXPECT_EQ(keys.Read(), want);
}

TEST_P(BatchRowsTest, AKeyThatIsTurnedFromOnePositionToAnotherIsTheOneRotatedThere) {
  constexpr int64_t kHeadDim = 64, kFrom = 3, kBy = 9;
  const Angles to(kFrom + kBy + 1, kHeadDim);
  const std::vector<float> key = Random(kHeadDim);
  const auto rotated = [&](int64_t position) {
    std::vector<float> head = key;
    Rotate(to.cosine.data() + position * kHeadDim / 2, to.sine.data() + position * kHeadDim / 2,
           kHeadDim, &head);
    return head;
  };
  Guarded<uint16_t> keys(here(), testing::Halves(rotated(kFrom)));
  const std::vector<batch::KeyRun> runs = {{keys.get(), kHeadDim, 1, kBy}};
  here().Run(&batch::ForwardKernels::turn_keys,
             {here().In(runs), 1, 1, here().In(to.cosine), here().In(to.sine), kHeadDim});
  // Two roundings to 11 bits, of numbers up to about 4.
  ExpectClose(rotated(kFrom + kBy), testing::FloatsOfHalves(keys.Read()), 1e-3, 3e-3, "turned");
}

INSTANTIATE_TEST_SUITE_P(All, BatchRowsTest, ::testing::ValuesIn(testing::BackendNames()),
                         BackendCaseName);

}  // namespace
}  // namespace cairn::kernels
