#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "cairn/kernels/weight_types.h"

namespace cairn::kernels {
namespace {

constexpr char kFixture[] = "tests/data/gguf/dequantise.bin";

struct Record {
  uint32_t blocks = 0;
  uint32_t elements = 0;
  uint32_t block_bytes = 0;
  std::vector<std::byte> data;
  std::vector<float> numbers;
};

// The fixture's format is described in tests/data/gguf/make_fixtures.py.
std::map<std::string, Record> ReadFixture() {
  std::ifstream in(kFixture, std::ios::binary);
  std::map<std::string, Record> records;
  char name[9] = {};
  while (in.read(name, 8)) {
    Record r;
    in.read(reinterpret_cast<char*>(&r.blocks), 4);
    in.read(reinterpret_cast<char*>(&r.elements), 4);
    in.read(reinterpret_cast<char*>(&r.block_bytes), 4);
    r.data.resize(size_t{r.blocks} * r.block_bytes);
    r.numbers.resize(size_t{r.blocks} * r.elements);
    in.read(reinterpret_cast<char*>(r.data.data()), static_cast<std::streamsize>(r.data.size()));
    in.read(reinterpret_cast<char*>(r.numbers.data()),
            static_cast<std::streamsize>(r.numbers.size() * 4));
    records[name] = std::move(r);
  }
  return records;
}

class DequantiseTest : public ::testing::TestWithParam<int> {};

TEST_P(DequantiseTest, EqualsTheReferenceBitForBit) {
  const auto type = static_cast<WeightType>(GetParam());
  const auto records = ReadFixture();
  const auto it = records.find(std::string(Name(type)));
  ASSERT_NE(it, records.end()) << kFixture << " has no record for " << Name(type);
  const Record& r = it->second;
  ASSERT_EQ(BlockElements(type), r.elements);
  ASSERT_EQ(BlockBytes(type), r.block_bytes);
  const int64_t n = static_cast<int64_t>(r.numbers.size());
  ASSERT_GT(n, 0);
  ASSERT_EQ(RowBytes(type, n), static_cast<int64_t>(r.data.size()));

  // An odd source address, and a guard number behind the row.
  std::vector<std::byte> source(r.data.size() + 1);
  std::memcpy(source.data() + 1, r.data.data(), r.data.size());
  std::vector<float> out(r.numbers.size() + 1, 42.0f);
  DequantiseRow(type, source.data() + 1, out.data(), n);
  for (size_t i = 0; i < r.numbers.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(r.numbers[i]))
        << Name(type) << " number " << i << ": " << out[i] << ", expected " << r.numbers[i];
  }
  EXPECT_EQ(out.back(), 42.0f);
}

INSTANTIATE_TEST_SUITE_P(AllTypes, DequantiseTest, ::testing::Range(0, kWeightTypeCount),
                         [](const auto& param_info) {
                           return std::string(Name(static_cast<WeightType>(param_info.param)));
                         });

TEST(HalfToFloatTest, SpecialValues) {
  EXPECT_EQ(HalfToFloat(0x3c00), 1.0f);
  EXPECT_EQ(HalfToFloat(0xc000), -2.0f);
  EXPECT_EQ(HalfToFloat(0x7bff), 65504.0f);
  EXPECT_EQ(HalfToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(HalfToFloat(0x83ff), -1023 * 0x1p-24f);
  EXPECT_EQ(HalfToFloat(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(HalfToFloat(0x7e01)));
  EXPECT_TRUE(std::signbit(HalfToFloat(0x8000)));
}

}  // namespace
}  // namespace cairn::kernels
