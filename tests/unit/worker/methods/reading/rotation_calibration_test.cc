#include "services/worker/methods/reading/rotation_calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cairn/kernels/backend.h"
#include "common/status/matchers.h"

namespace cairn::worker {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kWeights[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

std::string Header() {
  return std::string("cairn key-rotations 1\n# for people\nweights ") + kWeights +
         "\nlayers 2\nkv_heads 1\nhead_dim 2\n";
}

std::string Half(std::vector<float> numbers) {
  std::vector<uint16_t> half(numbers.size());
  kernels::InlineStream stream;
  kernels::BestCpuBackend().forward->to_half(stream,
                                             {numbers.data(), half.data(), std::ssize(numbers)});
  return {reinterpret_cast<const char*>(half.data()), 2 * half.size()};
}

// For each layer: two means, two directions.
std::string File(std::vector<float> numbers = {0.5f, 2, 0, 1, 1, 0, 0, 3, 0.6f, 0.8f, -0.8f,
                                               0.6f}) {
  return Header() + Half(std::move(numbers));
}

TEST(RotationCalibrationTest, ReadsWhatAFileSays) {
  const auto got = ParseRotationCalibration(File());
  ASSERT_OK(got);
  EXPECT_EQ(got->weights.Hex(), kWeights);
  EXPECT_EQ(got->rotations.layers, 2);
  EXPECT_EQ(got->rotations.kv_heads, 1);
  EXPECT_EQ(got->rotations.head_dim, 2);
  EXPECT_THAT(got->rotations.queries, ElementsAre(0.5f, 2, 0, 3));
  EXPECT_EQ(got->rotations.directions.size(), 8u);
  EXPECT_EQ(got->rotations.directions[1], 1);
  EXPECT_NEAR(got->rotations.directions[4], 0.6, 1e-3);
}

TEST(RotationCalibrationTest, ColumnsAreThoseWithTheLargestQueriesAndKeys) {
  const KeyRotations rotations = ParseRotationCalibration(File())->rotations;
  // Layer 0: means of |q . d| are .5 and 2, those of |k . d| 3 and 0.5.
  const std::vector<float> keys = {1, 3, 0, -3};
  EXPECT_THAT(PartialColumns(rotations, 0, 0, keys, 1), ElementsAre(0, 1));
  EXPECT_THAT(PartialColumns(rotations, 0, 0, keys, 2), ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(PartialColumns(rotations, 0, 0, std::vector<float>{1, 1}, 1), ElementsAre(1, 0));
}

TEST(RotationCalibrationTest, ErrorsSayWhere) {
  const auto expect = [](const std::string& file, const char* error) {
    EXPECT_THAT(ParseRotationCalibration(file),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr(error)));
  };
  struct Bad {
    std::string from, to;
    const char* error;
  };
  const Bad bads[] = {
      {"rotations 1", "rotations 2", "line 1: expected 'cairn key-rotations 1'"},
      {kWeights, "0011", "line 3: expected 'weights' and 64 hexadecimal digits"},
      {"layers 2", "layers 0", "line 4: expected 'layers' and a number from 1 to 4096"},
      {"layers 2", "layers 3", "got 24 bytes of numbers, expected 36"},
      {"kv_heads 1", "kv_heads", "line 5: expected 'kv_heads"},
      {"head_dim 2", "head_dim 4096", "line 6: expected 'head_dim' and a number from 1 to 512"},
  };
  for (const Bad& bad : bads) {
    std::string file = File();
    file.replace(file.find(bad.from), bad.from.size(), bad.to);
    expect(file, bad.error);
  }
  expect(File() + "\n", "got 25 bytes of numbers, expected 24");
  expect(File({0.5f, -2, 0, 1, 1, 0, 0, 3, 0.6f, 0.8f, -0.8f, 0.6f}),
         "layer 0, KV head 0: got -2 as a mean, expected 0 or more");
  const auto skewed = "layer 1, KV head 0: expected directions of length 1 at right angles";
  expect(File({0.5f, 2, 0, 1, 1, 0, 0, 3, 0.6f, 0.8f, 0.6f, 0.8f}), skewed);
  expect(File({0.5f, 2, 0, 1, 1, 0, 0, 3, 0.6f, 0.9f, -0.8f, 0.6f}), skewed);
  expect(File({0.5f, 2, 0, 1, 1, 0, 0, 3, std::nanf(""), 0.8f, -0.8f, 0.6f}), skewed);
  // No beginning of a file is one.
  for (size_t n = 0; n < File().size(); ++n) {
    EXPECT_FALSE(ParseRotationCalibration(File().substr(0, n)).ok()) << n;
  }
}

// A folder with files under the names of their digests.
class LoadKeyRotationsTest : public ::testing::Test {
 protected:
  LoadKeyRotationsTest()
      : folder_(std::filesystem::temp_directory_path() /
                ("cairn-rotations-" + std::to_string(getpid()) + "-" +
                 std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()))) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
  }
  ~LoadKeyRotationsTest() override { std::filesystem::remove_all(folder_); }

  // Sets which file is wanted.
  void Put(const std::string& bytes, const std::string& named_as) {
    const std::string digest = Sha256::Of(named_as).Hex();
    std::ofstream(folder_ / (digest + ".rotations"), std::ios::binary) << bytes;
    wanted_.digest = std::stoull(digest.substr(0, 16), nullptr, 16);
  }
  void Put(const std::string& bytes) { Put(bytes, bytes); }
  void ExpectRefused(const std::string& why) {
    EXPECT_THAT(LoadKeyRotations(folder_.string(), wanted_),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr(why)));
  }

  const std::filesystem::path folder_;
  RotationsWanted wanted_ = {.digest = 0x123456789abcdef,
                             .weights = *Digest::FromHex(kWeights, "weights"),
                             .kv = {.layers = 2, .kv_heads = 1, .head_dim = 2, .block_tokens = 64}};
};

TEST_F(LoadKeyRotationsTest, FindsAFileByTheBeginningOfItsDigest) {
  Put(File());
  EXPECT_OK(LoadKeyRotations(folder_.string(), wanted_));
}

TEST_F(LoadKeyRotationsTest, AMissingFileIsNamed) {
  ExpectRefused("has no file 0123456789abcdef*.rotations, which the read policy names");
}

TEST_F(LoadKeyRotationsTest, DamageIsSeen) {
  std::string damaged = File();
  damaged.back() ^= 1;
  Put(damaged, File());
  ExpectRefused("damaged: its SHA-256 is");
  Put(Header());
  ExpectRefused("got 0 bytes of numbers, expected 24");
}

TEST_F(LoadKeyRotationsTest, AFileOfAnotherModelOrShapeIsRefused) {
  Put(File());
  wanted_.kv.kv_heads = 3;
  ExpectRefused("2 layers of 1 KV heads of 2 dimensions, the model has 2 of 3 of 2");
  wanted_.weights.bytes[0] ^= 1;
  ExpectRefused("made for weights 0011");
}

}  // namespace
}  // namespace cairn::worker
