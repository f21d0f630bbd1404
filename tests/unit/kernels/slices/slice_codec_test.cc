// Slices on the host: threads share them, and each keeps its own faults. The conformance suite
// compares their bytes.

#include "kernels/slices/slice_codec.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/codecs/turbo/turbo_plane.h"
#include "kernels/reference/half.h"
#include "kernels/slices/bfloat16.h"

namespace cairn::kernels {
namespace {

constexpr int32_t kDim = 64, kTokens = 20;
constexpr size_t kSlices = 37;
constexpr size_t kNumbers = size_t{2} * kTokens * kDim;  // Two heads.

SliceForm FormOf(HeadCoding coding, int32_t parameter) {
  SliceForm form;
  form.k = {coding, parameter, 2, kDim, int64_t{kTokens} * kDim, kDim};
  form.v = form.k;
  form.sink = 1;
  return form;
}

// Slices of seeded numbers, with room for their bytes.
struct Slices {
  std::vector<uint16_t> numbers = std::vector<uint16_t>(2 * kSlices * kNumbers);
  std::vector<std::byte> bytes;
  std::vector<uint32_t> faults = std::vector<uint32_t>(kSlices);
  std::vector<uint64_t> sizes = std::vector<uint64_t>(kSlices);
  std::vector<SliceTask> tasks = std::vector<SliceTask>(kSlices);

  explicit Slices(const SliceForm& form) {
    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    for (uint16_t& x : numbers) x = HalfOfFloat(normal(rng));
    tasks[0].tokens = kTokens;
    const auto most = static_cast<size_t>(SliceBytes(form, tasks[0]));
    bytes.resize(kSlices * most);
    for (size_t i = 0; i < kSlices; ++i) {
      SliceTask& task = tasks[i];
      task.tokens = kTokens;
      task.layer = static_cast<int32_t>(i);
      task.first_position = i % 3 == 0 ? 0 : 64;
      task.bytes = static_cast<uint64_t>(SliceBytes(form, task));
      task.encoded = bytes.data() + i * most;
      task.k = numbers.data() + 2 * i * kNumbers;
      task.v = task.k + kNumbers;
      task.faults = &faults[i];
      task.encoded_bytes = &sizes[i];
    }
  }
  SlicesArgs Args(const SliceForm& form) const { return {form, tasks.data(), std::ssize(tasks)}; }
};

TEST(SliceCodecTest, ThreadsGiveTheSameBytesAndNumbers) {
  const CodecKernels& kernels = CpuCodecKernels(BestIsa());
  ThreadPool pool(3);
  for (const SliceForm& form : {FormOf(HeadCoding::kInt8, 32), FormOf(HeadCoding::kCacheGen, 12)}) {
    Slices alone(form), shared(form);
    EncodeSlices(kernels, alone.Args(form), nullptr);
    EncodeSlices(kernels, shared.Args(form), &pool);
    EXPECT_EQ(shared.bytes, alone.bytes);
    EXPECT_EQ(shared.sizes, alone.sizes);
    EXPECT_EQ(shared.faults, std::vector<uint32_t>(kSlices));
    for (Slices* slices : {&alone, &shared}) {
      for (size_t i = 0; i < kSlices; ++i) {
        EXPECT_GT(slices->sizes[i], 0u);
        slices->tasks[i].bytes = slices->sizes[i];
      }
    }
    const std::vector<uint16_t> before = alone.numbers;
    DecodeSlices(kernels, alone.Args(form), nullptr);
    DecodeSlices(kernels, shared.Args(form), &pool);
    EXPECT_EQ(shared.numbers, alone.numbers);
    EXPECT_NE(alone.numbers, before) << "the codec loses something";
    EXPECT_EQ(shared.faults, std::vector<uint32_t>(kSlices));
  }
}

TEST(SliceCodecTest, EachSliceHasItsOwnFaults) {
  const CodecKernels& kernels = CpuCodecKernels(BestIsa());
  ThreadPool pool(3);
  const SliceForm form = FormOf(HeadCoding::kFp8, 0);
  Slices slices(form);
  slices.tasks[5].k[7] = 0x7c00;
  --slices.tasks[9].bytes;
  slices.faults[11] = kHashFault;
  EncodeSlices(kernels, slices.Args(form), &pool);
  std::vector<uint32_t> want(kSlices);
  want[5] = kNonFiniteFault;
  want[9] = kLengthFault;
  want[11] = kHashFault;
  EXPECT_EQ(slices.faults, want);
  EXPECT_EQ(slices.sizes[5], 0u);
  EXPECT_EQ(slices.sizes[11], 0u);
  EXPECT_EQ(slices.sizes[6], slices.tasks[6].bytes);
}

TEST(SliceCodecTest, AFormMayBringItsOwnSigns) {
  const CodecKernels& kernels = CpuCodecKernels(BestIsa());
  SliceForm form = FormOf(HeadCoding::kTurbo, 4);
  std::vector<uint32_t> signs(kDim);
  codecs::TurboSigns(0, codecs::PlaneRole::kKeys, kDim, signs.data());
  Slices of_format(form), own(form);
  EncodeSlices(kernels, of_format.Args(form), nullptr);
  form.signs = signs.data();
  EncodeSlices(kernels, own.Args(form), nullptr);
  // Those of the format's keys in layer 0.
  const size_t keys = static_cast<size_t>(own.tasks[0].bytes) / 2;
  EXPECT_EQ(std::memcmp(own.bytes.data(), of_format.bytes.data(), keys), 0);
  EXPECT_NE(std::memcmp(own.bytes.data() + keys, of_format.bytes.data() + keys, keys), 0);
}

TEST(Bfloat16Test, HalvesAreThoseOfTheDefinition) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const auto half = static_cast<uint16_t>(h);
    const float x = FloatOfHalf(half);
    if ((h & 0x7fff) > 0x7c00) {
      EXPECT_NE(x, x);
      continue;
    }
    ASSERT_EQ(x, FromHalf(half)) << h;
    ASSERT_EQ(HalfOfFloat(x), half);
    // Between this half and the next, and the tie.
    for (const float factor : {1.0002f, 1.00048828125f, 1.0007f}) {
      ASSERT_EQ(HalfOfFloat(x * factor), ToHalf(x * factor)) << h;
    }
  }
  EXPECT_EQ(HalfOfFloat(65520.0f), 0x7c00);
}

TEST(Bfloat16Test, OnlyNumbersThatAreHalvesAreExact) {
  const auto exact = [](uint16_t bits) {
    bool is = true;
    HalfOfBfloat16(bits, &is);
    return is;
  };
  EXPECT_TRUE(exact(0x3f80)) << "1";
  EXPECT_TRUE(exact(0xff80)) << "minus infinity";
  EXPECT_TRUE(exact(0x3380)) << "2^-24";
  EXPECT_FALSE(exact(0x3381)) << "a bit more than 2^-24";
  EXPECT_FALSE(exact(0x4800)) << "2^17";
  EXPECT_FALSE(exact(0x7fc0)) << "NaN";
  EXPECT_EQ(Bfloat16OfHalf(0x3c04), 0x3f80) << "a tie goes to the even number";
  EXPECT_EQ(Bfloat16OfHalf(0x3c0c), 0x3f82);
  EXPECT_EQ(Bfloat16OfHalf(0x7e00), 0x7fc0);
}

}  // namespace
}  // namespace cairn::kernels
