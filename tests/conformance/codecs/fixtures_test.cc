// Bytes and decoded halves equal those of tests/data/codecs, which numpy made from the format's
// description alone.

#include <fstream>
#include <iterator>

#include "tests/conformance/codecs/case.h"

namespace cairn::codecs {
namespace {

using testing::DecodeSlice;
using testing::EncodeSlice;
using testing::TestSlice;

struct Fixture {
  std::string file;
  std::string name;
  std::vector<int64_t> values;
  uint32_t decoded_crc32[3];
};

const Fixture kFixtures[] = {
#include "tests/data/codecs/fixtures.inc"
};

std::vector<char> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<uint16_t> ReadHalves(const std::string& path) {
  const std::vector<char> bytes = ReadFile(path);
  std::vector<uint16_t> halves(bytes.size() / 2);
  std::memcpy(halves.data(), bytes.data(), 2 * halves.size());
  return halves;
}

uint32_t Crc32(const std::vector<uint16_t>& halves) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < 2 * halves.size(); ++i) {
    crc ^= halves[i / 2] >> (i % 2 * 8) & 0xff;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

// The two blocks of layer 7, then the edge cases: what the fixtures encode.
std::vector<std::pair<TestSlice, SlicePlace>> Slices() {
  constexpr size_t kHead = 128 * 64;  // Two blocks.
  const std::vector<uint16_t> kv = ReadHalves("tests/data/smollm2/kv.f16");
  const std::vector<uint16_t> edge = ReadHalves("tests/data/codecs/edge.f16");
  std::vector<std::pair<TestSlice, SlicePlace>> slices;
  if (kv.size() != 4 * 2 * 3 * kHead || edge.size() != 2 * 16 * 64) return slices;
  for (const size_t block : {0u, 1u}) {
    std::vector<uint16_t> numbers;
    for (size_t head = 0; head < 6; ++head) {
      const auto at = kv.begin() + static_cast<ptrdiff_t>((6 + head) * kHead + block * kHead / 2);
      numbers.insert(numbers.end(), at, at + kHead / 2);
    }
    TestSlice slice({64, 3, 64, 3, 64}, 0);
    slice.Load(numbers.data());
    slices.emplace_back(slice, SlicePlace{7, block == 0 ? 0 : 64});
  }
  TestSlice slice({16, 1, 64, 1, 64}, 0);
  slice.Load(edge.data());
  slices.emplace_back(slice, SlicePlace{7, 0});
  return slices;
}

class FixturesTest : public ::testing::TestWithParam<Fixture> {};

TEST_P(FixturesTest, BytesAndDecodedHalvesAreNumpys) {
  const Fixture& fixture = GetParam();
  const auto codec = MakeCodec(fixture.name, fixture.values);
  ASSERT_NE(codec, nullptr);
  auto slices = Slices();
  ASSERT_EQ(slices.size(), 3u);
  const std::vector<char> want = ReadFile("tests/data/codecs/" + fixture.file);
  ASSERT_FALSE(want.empty());
  size_t at = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    auto& [slice, place] = slices[i];
    const std::vector<std::byte> got = EncodeSlice(*codec, slice, place);
    ASSERT_LE(at + got.size(), want.size());
    for (size_t b = 0; b < got.size(); ++b) {
      ASSERT_EQ(got[b], static_cast<std::byte>(want[at + b])) << "slice " << i << ", byte " << b;
    }
    at += got.size();
    TestSlice back(slice.shape(), 0);
    ASSERT_EQ(DecodeSlice(*codec, got, &back, place), CodecStatus::kOk);
    EXPECT_EQ(Crc32(back.Numbers()), fixture.decoded_crc32[i]) << "slice " << i;
  }
  EXPECT_EQ(at, want.size());
}

std::string CaseName(const ::testing::TestParamInfo<Fixture>& test) {
  std::string label = test.param.file.substr(0, test.param.file.find('.'));
  for (char& c : label) c = c == '-' ? '_' : c;
  return label;
}

INSTANTIATE_TEST_SUITE_P(All, FixturesTest, ::testing::ValuesIn(kFixtures), CaseName);

}  // namespace
}  // namespace cairn::codecs
