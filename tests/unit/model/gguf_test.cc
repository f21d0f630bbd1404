#include "model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/status/matchers.h"
#include "tests/unit/model/gguf_builder.h"

namespace cairn::model {
namespace {

using cairn::testing::StatusIs;
using kernels::WeightType;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::GgufBuilder;
using ::testing::HasSubstr;

Status ParseStatus(const std::vector<std::byte>& bytes) {
  return GgufFile::Parse(bytes, "test.gguf").status();
}

TEST(GgufFileTest, ReadsMetadataAndTensors) {
  const auto bytes = GgufBuilder()
                         .String("s", "text")
                         .U32("u", 7)
                         .Scalar("i", GgufValueType::kInt16, int16_t{-3})
                         .Scalar("big", GgufValueType::kUint64, ~uint64_t{0})
                         .F32("f", 1.5f)
                         .Bool("b", true)
                         .Strings("ss", {"x", "", "yz"})
                         .Ints("is", {1, -2})
                         .Tensor("t", {32, 3}, WeightType::kQ4_1, 0x55)
                         .Tensor("n", {5})
                         .Build();
  auto file = GgufFile::Parse(bytes, "test.gguf");
  ASSERT_OK(file);
  const GgufFile& f = **file;
  EXPECT_EQ(f.version(), 3u);
  EXPECT_EQ(*f.GetString("s"), "text");
  EXPECT_EQ(*f.GetInt("u"), 7);
  EXPECT_EQ(*f.GetInt("i"), -3);
  EXPECT_EQ(*f.GetFloat("f"), 1.5);
  EXPECT_TRUE(*f.GetBool("b"));
  EXPECT_THAT(*f.GetStringArray("ss"), ElementsAre("x", "", "yz"));
  EXPECT_THAT(*f.GetIntArray("is"), ElementsAre(1, -2));
  ASSERT_EQ(f.tensors().size(), 2u);
  const GgufTensor* t = f.FindTensor("t");
  ASSERT_NE(t, nullptr);
  EXPECT_EQ(t->type, WeightType::kQ4_1);
  EXPECT_THAT(t->dims, ElementsAre(32, 3));
  EXPECT_EQ(t->data.size(), 60u);
  EXPECT_EQ(t->data.front(), std::byte{0x55});
  EXPECT_EQ(f.FindTensor("n")->data.size(), 20u);
  EXPECT_EQ(f.FindTensor("absent"), nullptr);
}

TEST(GgufFileTest, GettersNameKeyAndTypes) {
  const auto bytes = GgufBuilder()
                         .String("s", "text")
                         .Scalar("big", GgufValueType::kUint64, ~uint64_t{0})
                         .Ints("is", {1})
                         .Build();
  auto file = GgufFile::Parse(bytes, "test.gguf");
  ASSERT_OK(file);
  EXPECT_THAT((*file)->GetInt("s"),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'s'"), HasSubstr("string"), HasSubstr("integer"))));
  EXPECT_THAT((*file)->GetInt("big"), StatusIs(StatusCode::kInvalidArgument, HasSubstr("'big'")));
  EXPECT_THAT((*file)->GetInt("is"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("array of int32")));
  EXPECT_THAT((*file)->GetStringArray("is"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("array of string")));
  EXPECT_THAT((*file)->GetFloat("absent"), StatusIs(StatusCode::kNotFound, HasSubstr("'absent'")));
}

TEST(GgufFileTest, RefusesOtherFiles) {
  const std::string text = "#!/bin/sh\n";
  const auto* raw = reinterpret_cast<const std::byte*>(text.data());
  EXPECT_THAT(GgufFile::Parse({raw, text.size()}, "a.sh"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'a.sh' is not a GGUF file")));
  EXPECT_THAT(GgufFile::Parse({raw, 0}, "empty"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("is not a GGUF file")));
  EXPECT_THAT(ParseStatus(GgufBuilder().Version(1).Build()),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("version 1, expected 2 or 3")));
  EXPECT_THAT(ParseStatus(GgufBuilder().Version(0x03000000).Build()),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("big-endian")));
}

TEST(GgufFileTest, NamesTensorAndTypeThatAreNotSupported) {
  EXPECT_THAT(ParseStatus(GgufBuilder().RawTensor("blk.0.x", {256}, 10, 0).Build()),
              StatusIs(StatusCode::kUnimplemented,
                       AllOf(HasSubstr("'blk.0.x'"), HasSubstr("Q2_K"), HasSubstr("Q4_K"))));
  EXPECT_THAT(ParseStatus(GgufBuilder().RawTensor("t", {256}, 77, 0).Build()),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("unknown type 77")));
}

TEST(GgufFileTest, RefusesBadTensorEntries) {
  const auto expect = [](GgufBuilder builder, const std::string& text) {
    EXPECT_THAT(ParseStatus(builder.Build()),
                StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("'t'"), HasSubstr(text))));
  };
  expect(GgufBuilder().RawTensor("t", {}, 0, 0), "0 dimensions");
  expect(GgufBuilder().RawTensor("t", {1, 1, 1, 1, 1}, 0, 0), "5 dimensions");
  expect(GgufBuilder().RawTensor("t", {0}, 0, 0), "dimension of 0");
  expect(GgufBuilder().RawTensor("t", {-32}, 0, 0), "more numbers than the file can hold");
  expect(GgufBuilder().RawTensor("t", {int64_t{1} << 62, 1 << 2}, 0, 0), "more numbers than");
  expect(GgufBuilder().RawTensor("t", {33}, 3, 0), "multiple of 32");
  expect(GgufBuilder().Tensor("t", {8}).RawTensor("t", {8}, 0, 32), "twice");
  expect(GgufBuilder().Tensor("u", {64}).RawTensor("t", {8}, 0, 8), "multiple of 32");
  expect(GgufBuilder().Tensor("u", {64}).RawTensor("t", {8}, 0, 1 << 20), "beyond the end");
  expect(GgufBuilder().Tensor("u", {64}).RawTensor("t", {8}, 0, ~uint64_t{31}), "beyond the end");
  expect(GgufBuilder().Tensor("u", {64}).RawTensor("t", {8}, 0, 32), "overlaps that of");
}

TEST(GgufFileTest, RefusesBadMetadata) {
  EXPECT_THAT(ParseStatus(GgufBuilder().U32("k", 1).U32("k", 2).Build()),
              StatusIs(StatusCode::kDataLoss, HasSubstr("'k' appears twice")));
  EXPECT_THAT(ParseStatus(GgufBuilder().U32("general.alignment", 48).Build()),
              StatusIs(StatusCode::kDataLoss, HasSubstr("general.alignment is 48")));
  EXPECT_THAT(ParseStatus(GgufBuilder().Scalar("b", GgufValueType::kBool, uint8_t{2}).Build()),
              StatusIs(StatusCode::kDataLoss, HasSubstr("'b' is a bool of value 2")));
  EXPECT_THAT(
      ParseStatus(GgufBuilder().Scalar("x", static_cast<GgufValueType>(13), uint8_t{2}).Build()),
      StatusIs(StatusCode::kDataLoss, HasSubstr("unknown value type 13")));
}

TEST(GgufFileTest, OpenNamesThePath) {
  EXPECT_THAT(GgufFile::Open("does/not/exist.gguf"),
              StatusIs(StatusCode::kNotFound, HasSubstr("does/not/exist.gguf")));
  EXPECT_THAT(GgufFile::Open("."),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("not a regular file")));
  const std::string path = ::testing::TempDir() + "cairn_gguf_test." + std::to_string(getpid());
  std::ofstream(path).close();
  EXPECT_THAT(GgufFile::Open(path), StatusIs(StatusCode::kInvalidArgument, HasSubstr("empty")));
  const auto bytes = GgufBuilder().U32("k", 1).Tensor("t", {8}).Build();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  auto file = GgufFile::Open(path);
  ASSERT_OK(file);
  EXPECT_EQ((*file)->bytes().size(), bytes.size());
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace cairn::model
