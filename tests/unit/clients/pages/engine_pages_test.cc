#include "clients/pages/engine_pages.h"

#include <gmock/gmock.h>

#include "common/status/matchers.h"

namespace cairn::pages {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

TEST(EnginePagesTest, ABlockIsGatheredRunByRunAndScatteredBack) {
  const EnginePages pages{
      {{.address = 1000, .stride = 10, .bytes = 10}, {.address = 5000, .stride = 100, .bytes = 7}},
      8};
  EXPECT_EQ(pages.block_bytes(), 17u);
  const BlockCopy copies[] = {{2, 90000}, {5, 91000}};
  const auto gather = GatherTasks(pages, copies);
  const auto scatter = ScatterTasks(pages, copies);
  const device::CopyTask expected[] = {
      {90000, 1020, 10}, {90010, 5200, 7}, {91000, 1050, 10}, {91010, 5500, 7}};
  ASSERT_EQ(gather.size(), 4u);
  ASSERT_EQ(scatter.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(gather[i].to, expected[i].to);
    EXPECT_EQ(gather[i].from, expected[i].from);
    EXPECT_EQ(gather[i].bytes, expected[i].bytes);
    EXPECT_EQ(scatter[i].to, expected[i].from);
    EXPECT_EQ(scatter[i].from, expected[i].to);
    EXPECT_EQ(scatter[i].bytes, expected[i].bytes);
  }
}

TEST(EnginePagesTest, BlocksThatAreNeighboursOnBothSidesAreOneCopy) {
  const EnginePages pages{{{.address = 1000, .stride = 10, .bytes = 10}}, 8};
  const BlockCopy neighbours[] = {{2, 90000}, {3, 90010}, {4, 90020}};
  EXPECT_EQ(GatherTasks(pages, neighbours).size(), 1u);
  EXPECT_EQ(GatherTasks(pages, neighbours)[0].bytes, 30u);
  const BlockCopy apart[] = {{2, 90000}, {3, 91000}, {5, 91010}};
  EXPECT_EQ(GatherTasks(pages, apart).size(), 3u);
}

TEST(EnginePagesTest, WhatCannotBePagesIsNamed) {
  const auto check = [](EnginePages pages, const char* text) {
    EXPECT_THAT(Validate(pages), StatusIs(StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  check({{}, 8}, "field 'runs': got none");
  check({{{1000, 10, 10}}, 0}, "field 'blocks': got 0");
  check({{{1000, 10, 10}, {1000, 10, 0}}, 8}, "field 'runs[1]': got 0 bytes");
  check({{{0, 10, 10}}, 8}, "field 'runs[0]': got 10 bytes at address 0");
  check({{{1000, 9, 10}}, 8}, "field 'runs[0].stride': got 9, expected at least its 10 bytes");
  check({{{1000, uint64_t{1} << 62, 10}}, 8}, "expected addresses below 2^64");
  check({{{UINT64_MAX - 50, 10, 10}}, 8}, "expected addresses below 2^64");
  EXPECT_OK(Validate({{{1000, 10, 10}}, 8}));
}

}  // namespace
}  // namespace cairn::pages
