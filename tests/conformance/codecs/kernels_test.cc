// The kernels of codecs on every backend: the bytes and halves of the definition, no byte outside,
// faults in the word that the caller gave.

#include <functional>

#include "cairn/kernels/codec/codec_kernels.h"
#include "tests/conformance/codecs/case.h"
#include "tests/conformance/kernels/case.h"

namespace cairn::kernels {
namespace {

using testing::BackendCaseName;
using testing::Device;
using testing::Guarded;

struct Shape {
  int64_t rows, dim, gap;
};
const Shape kShapes[] = {{64, 64, 0}, {1, 128, 3}, {17, 64, 5}, {33, 256, 0}, {5, 512, 8}};

// Dimensions of the signs that turbo flips: any pattern.
std::vector<uint32_t> Signs(int64_t dim) {
  std::vector<uint32_t> signs;
  for (int64_t d = 0; d < dim; ++d) signs.push_back(d * d % 7 < 3 ? 0x80000000u : 0);
  return signs;
}

// One way of coding rows. Parameters may name memory, so each device makes its own.
template <typename Params>
struct Coding {
  CodecOp<EncodeArgs<Params>> CodecKernels::*encode;
  CodecOp<DecodeArgs<Params>> CodecKernels::*decode;
  std::function<Params(Device&, int64_t dim)> params;
  std::function<int64_t(int64_t rows, int64_t dim)> bytes;
  bool starts_with_scale = true;
};

struct Encoded {
  std::vector<std::byte> bytes;
  uint32_t faults;
};
struct Decoded {
  std::vector<uint16_t> numbers;  // With the gaps between rows.
  uint32_t faults;
};

class CodecKernelsTest : public testing::FamilyTest<&Backend::codecs> {
 protected:
  // [rows][dim + gap] halves.
  std::vector<uint16_t> Rows(const Shape& s) {
    std::vector<uint16_t> x;
    for (const float f : Random(s.rows * (s.dim + s.gap))) x.push_back(codecs::testing::ToHalf(f));
    return x;
  }

  template <typename Params>
  static Encoded Encode(Device& d, const Coding<Params>& c, const Shape& s,
                        const std::vector<uint16_t>& x, uint32_t faults = 0) {
    Guarded<std::byte> out(d, c.bytes(s.rows, s.dim));
    Guarded<uint32_t> word(d, 1, faults);
    d.Run(c.encode,
          {{d.In(x), s.rows, s.dim, s.dim + s.gap}, c.params(d, s.dim), out.get(), word.get()});
    return {out.Read(), word.Read()[0]};
  }

  template <typename Params>
  static Decoded Decode(Device& d, const Coding<Params>& c, const Shape& s,
                        const std::vector<std::byte>& bytes, bool streaming) {
    Guarded<uint16_t> y(d, s.rows * (s.dim + s.gap), 0x1234);
    Guarded<uint32_t> word(d, 1);
    d.Run(c.decode, {d.In(bytes),
                     c.params(d, s.dim),
                     {y.get(), s.rows, s.dim, s.dim + s.gap, streaming},
                     word.get()});
    if (streaming) d.codecs().end_streaming(d.stream());
    return {y.Read(), word.Read()[0]};
  }

  template <typename Params>
  void Check(const Coding<Params>& c) {
    for (const Shape& s : kShapes) {
      std::vector<uint16_t> x = Rows(s);
      const Encoded want = Encode(host(), c, s, x), got = Encode(here(), c, s, x);
      EXPECT_EQ(got.bytes, want.bytes) << s.rows << " rows of " << s.dim;
      EXPECT_EQ(got.faults, 0u);
      for (const bool streaming : {false, true}) {
        const Decoded back = Decode(here(), c, s, got.bytes, streaming);
        EXPECT_EQ(back.numbers, Decode(host(), c, s, want.bytes, false).numbers);
        EXPECT_EQ(back.faults, 0u);
      }
      // A word that has other faults keeps them.
      x[static_cast<size_t>((s.rows - 1) * (s.dim + s.gap) + s.dim - 1)] = 0x7e00;
      EXPECT_EQ(Encode(here(), c, s, x, 8).faults, 8 | kNonFiniteFault);
      if (!c.starts_with_scale) continue;
      std::vector<std::byte> corrupt = got.bytes;
      corrupt[0] = corrupt[1] = std::byte{0xff};
      EXPECT_EQ(Decode(here(), c, s, corrupt, false).faults, kScaleFault);
    }
  }
};

TEST_P(CodecKernelsTest, Int8) {
  for (const int64_t group : {16, 64}) {
    Check<Int8Params>(
        {.encode = &CodecKernels::int8_encode,
         .decode = &CodecKernels::int8_decode,
         .params = [=](Device&, int64_t) { return Int8Params{group}; },
         .bytes = [=](int64_t rows, int64_t dim) { return rows * Int8RowBytes(dim, group); }});
  }
}

TEST_P(CodecKernelsTest, Int4ByToken) {
  Check<Int4TokenParams>(
      {.encode = &CodecKernels::int4_token_encode,
       .decode = &CodecKernels::int4_token_decode,
       .params = [](Device&, int64_t) { return Int4TokenParams{64}; },
       .bytes = [](int64_t rows, int64_t dim) { return rows * Int4TokenRowBytes(dim, 64); }});
}

TEST_P(CodecKernelsTest, Int4ByChannel) {
  Check<Int4ChannelParams>({.encode = &CodecKernels::int4_channel_encode,
                            .decode = &CodecKernels::int4_channel_decode,
                            .params = [](Device&, int64_t) { return Int4ChannelParams{}; },
                            .bytes = Int4ChannelBytes});
}

TEST_P(CodecKernelsTest, Turbo) {
  for (const int bits : {2, 3, 4}) {
    Check<TurboParams>(
        {.encode = &CodecKernels::turbo_encode,
         .decode = &CodecKernels::turbo_decode,
         .params =
             [=](Device& d, int64_t dim) {
               return TurboParams{bits, d.In(Signs(dim))};
             },
         .bytes = [=](int64_t rows, int64_t dim) { return rows * TurboRowBytes(dim, bits); }});
  }
}

TEST_P(CodecKernelsTest, Fp8) {
  Check<Fp8Params>({.encode = &CodecKernels::fp8_encode,
                    .decode = &CodecKernels::fp8_decode,
                    .params = [](Device&, int64_t) { return Fp8Params{}; },
                    .bytes = [](int64_t rows, int64_t dim) { return rows * Fp8RowBytes(dim); }});
}

TEST_P(CodecKernelsTest, Lattice) {
  for (const Shape& s : kShapes) {
    std::vector<uint16_t> x = Rows(s);
    struct Numbers {
      uint16_t step;
      std::vector<uint16_t> all;
      uint32_t faults;
      bool operator==(const Numbers&) const = default;
    };
    const auto encode = [&](Device& d) {
      Guarded<uint16_t> step(d, 1), out(d, s.rows * s.dim);
      Guarded<uint32_t> word(d, 1);
      d.Run(&CodecKernels::lattice_encode,
            {{d.In(x), s.rows, s.dim, s.dim + s.gap}, 24, step.get(), out.get(), word.get()});
      return Numbers{step.Read()[0], out.Read(), word.Read()[0]};
    };
    const auto decode = [&](Device& d, const Numbers& numbers) {
      Guarded<uint16_t> y(d, s.rows * (s.dim + s.gap), 0x1234);
      Guarded<uint32_t> word(d, 1);
      d.Run(&CodecKernels::lattice_decode,
            {d.In(numbers.all), numbers.step, {y.get(), s.rows, s.dim, s.dim + s.gap}, word.get()});
      return Decoded{y.Read(), word.Read()[0]};
    };
    Numbers got = encode(here());
    EXPECT_EQ(got, encode(host()));
    EXPECT_EQ(got.faults, 0u);
    EXPECT_EQ(decode(here(), got).numbers, decode(host(), got).numbers);
    got.step = 0xffff;
    EXPECT_EQ(decode(here(), got).faults, kScaleFault);
    x[0] = 0xfc00;
    EXPECT_EQ(encode(here()).faults, kNonFiniteFault);
  }
}

TEST_P(CodecKernelsTest, CountsAddUp) {
  const Shape s{33, 64, 5};
  std::vector<uint16_t> x = Rows(s);
  x[0] = 0x7c00;
  x[70] = 0xfe01;
  x[66] = 0x7e00;  // Between the rows: it does not count.
  Guarded<int64_t> count(here(), 1, 40);
  here().Run(&CodecKernels::count_non_finite,
             {{here().In(x), s.rows, s.dim, s.dim + s.gap}, count.get()});
  EXPECT_EQ(count.Read()[0], 42);
}

INSTANTIATE_TEST_SUITE_P(All, CodecKernelsTest, ::testing::ValuesIn(testing::BackendNames()),
                         BackendCaseName);

}  // namespace
}  // namespace cairn::kernels
