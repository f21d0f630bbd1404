#include "services/worker/session/kv_codec.h"

#include <cmath>
#include <cstring>

#include "common/status/matchers.h"
#include "services/worker/session/worker_namespace.h"
#include "tests/support/half.h"

namespace cairn::worker {
namespace {

using cairn::testing::Half;

using ::testing::HasSubstr;

constexpr KvLayout kKv{.layers = 3, .kv_heads = 2, .head_dim = 64, .block_tokens = 64};

CheckedNamespace Namespace(const std::string& recipe) {
  NamespaceInputs inputs;
  inputs.model = "toy";
  inputs.weights = Sha256::Of("weights");
  inputs.kv = kKv;
  inputs.numerics = "toy-1";
  inputs.recipe = recipe;
  auto ns = WorkerNamespace(inputs);
  CAIRN_CHECK(ns.ok());
  return *std::move(ns);
}

// A layer of halves around 1: 0x3c00 is 1.0, and the last bits vary.
std::vector<std::byte> Page(uint32_t seed) {
  std::vector<uint16_t> numbers(kKv.layer_bytes() / 2);
  for (uint16_t& n : numbers) {
    seed = seed * 1664525u + 1013904223u;
    n = static_cast<uint16_t>(0x3800 + (seed >> 20) % 0x400) |
        static_cast<uint16_t>((seed >> 31) << 15);
  }
  std::vector<std::byte> page(kKv.layer_bytes());
  std::memcpy(page.data(), numbers.data(), page.size());
  return page;
}

TEST(KvCodecTest, RawIsThePageItself) {
  const auto codec = KvCodec::Create(Namespace("raw"), kKv, SteadyClock::Get());
  ASSERT_OK(codec);
  EXPECT_TRUE((*codec)->raw());
  EXPECT_FALSE((*codec)->lossy());
  EXPECT_EQ((*codec)->MaxSliceBytes(1, 0), kKv.layer_bytes());
}

TEST(KvCodecTest, WhatIsEncodedComesBackNearly) {
  const auto codec = KvCodec::Create(Namespace("int8"), kKv, SteadyClock::Get());
  ASSERT_OK(codec);
  EXPECT_TRUE((*codec)->lossy());
  KvCodec::Scratch scratch;
  const auto page = Page(1);
  for (const uint64_t position : {uint64_t{0}, uint64_t{640}}) {
    const uint64_t bytes = (*codec)->MaxSliceBytes(1, position);
    EXPECT_LT(bytes, kKv.layer_bytes() * 6 / 10);
    std::vector<std::byte> slice(bytes);
    ASSERT_OK((*codec)->Encode(1, position, page, slice, scratch));
    std::vector<std::byte> back(page.size());
    ASSERT_OK((*codec)->Decode((*codec)->id(), 1, position, slice, back, scratch));
    EXPECT_NE(back, page);
    const auto* a = reinterpret_cast<const Half*>(page.data());
    const auto* b = reinterpret_cast<const Half*>(back.data());
    for (size_t i = 0; i < page.size() / 2; ++i) {
      ASSERT_NEAR(static_cast<float>(a[i]), static_cast<float>(b[i]), 0.006f) << i;
    }
  }
}

TEST(KvCodecTest, KeysAndValuesDoNotChangePlaces) {
  const auto codec = KvCodec::Create(Namespace("int8"), kKv, SteadyClock::Get());
  ASSERT_OK(codec);
  KvCodec::Scratch scratch;
  std::vector<std::byte> page = Page(2);
  std::fill(page.begin() + static_cast<ptrdiff_t>(kKv.plane_bytes()), page.end(), std::byte{0});
  std::vector<std::byte> slice((*codec)->MaxSliceBytes(0, 64));
  ASSERT_OK((*codec)->Encode(0, 64, page, slice, scratch));
  std::vector<std::byte> back(page.size(), std::byte{0xff});
  ASSERT_OK((*codec)->Decode((*codec)->id(), 0, 64, slice, back, scratch));
  EXPECT_EQ(std::memcmp(back.data() + kKv.plane_bytes(), page.data() + kKv.plane_bytes(),
                        kKv.plane_bytes()),
            0);
  EXPECT_NE(std::memcmp(back.data(), back.data() + kKv.plane_bytes(), kKv.plane_bytes()), 0);
}

// Over that of `a`, of `count` numbers.
double RelativeError(const Half* a, const Half* b, size_t count) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < count; ++i) {
    error += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(a[i]), 2);
  }
  return std::sqrt(error / norm);
}

// Rows are independent: one of another head, token or plane would be wrong by more than all of it.
TEST(KvCodecTest, EachRowComesBackAtItsPlace) {
  for (const char* recipe :
       {"int8", "fp8", "int4", "mixed", "turbo:bits=4", "turbo:bits=3", "cachegen"}) {
    const auto codec = KvCodec::Create(Namespace(recipe), kKv, SteadyClock::Get());
    ASSERT_OK(codec);
    KvCodec::Scratch scratch;
    for (const uint64_t position : {uint64_t{0}, uint64_t{64}}) {
      const std::vector<std::byte> page = Page(6);
      std::vector<std::byte> slice((*codec)->MaxSliceBytes(1, position));
      const auto bytes = (*codec)->Encode(1, position, page, slice, scratch);
      ASSERT_OK(bytes);
      std::vector<std::byte> back(page.size());
      ASSERT_OK((*codec)->Decode((*codec)->id(), 1, position, std::span(slice).first(*bytes), back,
                                 scratch));
      const auto* a = reinterpret_cast<const Half*>(page.data());
      const auto* b = reinterpret_cast<const Half*>(back.data());
      constexpr size_t kRow = kKv.head_dim;
      for (size_t row = 0; row < page.size() / 2 / kRow; ++row) {
        EXPECT_LT(RelativeError(a + row * kRow, b + row * kRow, kRow), 0.4)
            << recipe << ", row " << row;
      }
    }
  }
}

TEST(KvCodecTest, LayerAndPositionReachTheCodec) {
  const auto codec = KvCodec::Create(Namespace("turbo:bits=4,sink=1"), kKv, SteadyClock::Get());
  ASSERT_OK(codec);
  KvCodec::Scratch scratch;
  const std::vector<std::byte> page = Page(7);
  const auto* a = reinterpret_cast<const Half*>(page.data());
  std::vector<std::byte> back(page.size());
  const auto* b = reinterpret_cast<const Half*>(back.data());
  std::vector<std::byte> slice((*codec)->MaxSliceBytes(1, 64));
  ASSERT_OK((*codec)->Encode(1, 64, page, slice, scratch));
  ASSERT_OK((*codec)->Decode((*codec)->id(), 2, 64, slice, back, scratch));
  EXPECT_GT(RelativeError(a, b, page.size() / 2), 0.9) << "the next layer's signs";
  EXPECT_FALSE((*codec)->Decode((*codec)->id(), 1, 0, slice, back, scratch).ok())
      << "the first block has a sink";

  slice.resize((*codec)->MaxSliceBytes(1, 0));
  ASSERT_OK((*codec)->Encode(1, 0, page, slice, scratch));
  ASSERT_OK((*codec)->Decode((*codec)->id(), 1, 0, slice, back, scratch));
  EXPECT_EQ(std::memcmp(a, b, kKv.head_dim * sizeof(Half)), 0) << "the sink is exact";
}

TEST(KvCodecTest, NumbersThatAreNotFiniteAreRefusedWithTheirCount) {
  const auto codec = KvCodec::Create(Namespace("int8"), kKv, SteadyClock::Get());
  ASSERT_OK(codec);
  KvCodec::Scratch scratch;
  std::vector<std::byte> page = Page(3);
  const uint16_t infinity = 0x7c00;
  std::memcpy(page.data() + 10, &infinity, 2);
  std::memcpy(page.data() + 2000, &infinity, 2);
  std::vector<std::byte> slice((*codec)->MaxSliceBytes(0, 0));
  EXPECT_THAT(
      (*codec)->Encode(0, 0, page, slice, scratch),
      testing::StatusIs(StatusCode::kInvalidArgument, HasSubstr("2 numbers are not finite")));
}

TEST(KvCodecTest, BytesOfAnotherLengthAreNoSlice) {
  const auto codec = KvCodec::Create(Namespace("int8"), kKv, SteadyClock::Get());
  ASSERT_OK(codec);
  KvCodec::Scratch scratch;
  std::vector<std::byte> slice((*codec)->MaxSliceBytes(0, 0) - 1);
  std::vector<std::byte> page(kKv.layer_bytes());
  EXPECT_THAT((*codec)->Decode((*codec)->id(), 0, 0, slice, page, scratch),
              testing::StatusIs(StatusCode::kDataLoss, HasSubstr("layer 0")));
}

TEST(KvCodecTest, CountsWhatItEncodedAndDecoded) {
  const auto codec = KvCodec::Create(Namespace("turbo:bits=4"), kKv, SteadyClock::Get());
  ASSERT_OK(codec);
  KvCodec::Scratch scratch;
  const std::vector<std::byte> page = Page(5);
  std::vector<std::byte> slice((*codec)->MaxSliceBytes(0, 64));
  ASSERT_OK((*codec)->Encode(0, 64, page, slice, scratch));
  std::vector<std::byte> back(page.size());
  for (int i = 0; i < 3; ++i)
    ASSERT_OK((*codec)->Decode((*codec)->id(), 0, 64, slice, back, scratch));
  // A failed block is not counted: it would make the ratio of bytes a wrong one.
  EXPECT_FALSE(
      (*codec)->Decode((*codec)->id(), 0, 64, std::span(slice).first(7), back, scratch).ok());
  const std::vector<KvCodec::Stats> all = (*codec)->GetStats();
  ASSERT_EQ(all.size(), 1u);
  const KvCodec::Stats& stats = all[0];
  EXPECT_EQ(stats.codec, "turbo");
  EXPECT_EQ(stats.encode.bytes_in, page.size());
  EXPECT_EQ(stats.encode.bytes_out, slice.size());
  EXPECT_EQ(stats.decode.bytes_in, 3 * slice.size());
  EXPECT_EQ(stats.decode.bytes_out, 3 * page.size());
  EXPECT_GT(stats.encode.seconds, 0);
  EXPECT_GT(stats.decode.seconds, 0);
}

TEST(KvCodecTest, SlicesOfVariableSizeComeBackToo) {
  const auto codec = KvCodec::Create(Namespace("cachegen"), kKv, SteadyClock::Get());
  ASSERT_OK(codec);
  KvCodec::Scratch scratch;
  std::vector<std::byte> slice((*codec)->MaxSliceBytes(2, 64));
  const auto bytes = (*codec)->Encode(2, 64, Page(4), slice, scratch);
  ASSERT_OK(bytes);
  EXPECT_LT(*bytes, slice.size());
  EXPECT_TRUE((*codec)->IsSliceBytes((*codec)->id(), 2, 64, *bytes));
  EXPECT_FALSE((*codec)->IsSliceBytes((*codec)->id(), 2, 64, slice.size() + 1));
  std::vector<std::byte> page(kKv.layer_bytes());
  EXPECT_OK((*codec)->Decode((*codec)->id(), 2, 64, std::span(slice).first(*bytes), page, scratch));
}

TEST(KvCodecTest, ALadderPushesItsFirstRungAndReadsAny) {
  const auto ladder =
      KvCodec::Create(Namespace("host=raw>disk=turbo:bits=4"), kKv, SteadyClock::Get());
  ASSERT_OK(ladder);
  EXPECT_TRUE((*ladder)->raw());
  EXPECT_TRUE((*ladder)->lossy());
  EXPECT_EQ((*ladder)->MaxSliceBytes(1, 0), kKv.layer_bytes());
  EXPECT_EQ((*ladder)->typical_slice_bytes(false), kKv.layer_bytes());
  EXPECT_LT((*ladder)->typical_slice_bytes(true), kKv.layer_bytes() / 3);
  EXPECT_FALSE((*ladder)->Has(format::Codec::kInt8));

  const auto turbo = KvCodec::Create(Namespace("turbo:bits=4"), kKv, SteadyClock::Get());
  ASSERT_OK(turbo);
  KvCodec::Scratch scratch;
  const auto page = Page(5);
  std::vector<std::byte> slice((*turbo)->MaxSliceBytes(1, 0));
  ASSERT_OK((*turbo)->Encode(1, 0, page, slice, scratch));
  EXPECT_TRUE((*ladder)->IsSliceBytes(format::Codec::kTurbo, 1, 0, slice.size()));
  EXPECT_FALSE((*ladder)->IsSliceBytes(format::Codec::kRaw, 1, 0, slice.size()));
  EXPECT_FALSE((*ladder)->IsSliceBytes(format::Codec::kInt8, 1, 0, slice.size()));
  std::vector<std::byte> expected(page.size()), back(page.size());
  ASSERT_OK((*turbo)->Decode(format::Codec::kTurbo, 1, 0, slice, expected, scratch));
  ASSERT_OK((*ladder)->Decode(format::Codec::kTurbo, 1, 0, slice, back, scratch));
  EXPECT_EQ(back, expected);
  const std::vector<KvCodec::Stats> stats = (*ladder)->GetStats();
  ASSERT_EQ(stats.size(), 2u);
  EXPECT_EQ(stats[0].decode.bytes_in, 0u);
  EXPECT_EQ(stats[1].codec, "turbo");
  EXPECT_EQ(stats[1].decode.bytes_in, slice.size());
}

TEST(KvCodecTest, LaddersThatCannotBeAreRefused) {
  EXPECT_THAT(
      KvCodec::Create(Namespace("device=int8>host=turbo:bits=4"), kKv, SteadyClock::Get()),
      testing::StatusIs(StatusCode::kUnimplemented, HasSubstr("rungs only for host and disk")));
  EXPECT_THAT(
      KvCodec::Create(Namespace("host=turbo:bits=4>disk=turbo:bits=2"), kKv, SteadyClock::Get()),
      testing::StatusIs(StatusCode::kInvalidArgument, HasSubstr("different codecs")));
}

}  // namespace
}  // namespace cairn::worker
