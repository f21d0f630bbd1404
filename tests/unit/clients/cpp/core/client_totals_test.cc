#include "clients/cpp/src/core/client_totals.h"

#include <gtest/gtest.h>

#include <set>

namespace cairn::client {
namespace {

// What a row forgets would be 0 in the sum.
TEST(ClientTotalsTest, TheSumHasEachTotal) {
  ClientStats one, sum;
  uint64_t last = 0;
#define CAIRN_SET(name, ...) one.name = ++last;
#define CAIRN_SET_LIST(name, ...) \
  for (uint64_t & value : one.name) value = ++last;
  CAIRN_CLIENT_COUNTED(CAIRN_SET)
  CAIRN_CLIENT_GATHERED(CAIRN_SET)
  CAIRN_CLIENT_LISTS(CAIRN_SET_LIST)
  sum.home = "home";
  one.home = "other";
  AddTotals(one, &sum);
  AddTotals(one, &sum);
#define CAIRN_EXPECT(name, ...) EXPECT_EQ(sum.name, 2 * one.name) << #name;
#define CAIRN_EXPECT_LIST(name, ...) \
  for (size_t i = 0; i < one.name.size(); ++i) EXPECT_EQ(sum.name[i], 2 * one.name[i]) << #name;
  CAIRN_CLIENT_COUNTED(CAIRN_EXPECT)
  CAIRN_CLIENT_GATHERED(CAIRN_EXPECT)
  CAIRN_CLIENT_LISTS(CAIRN_EXPECT_LIST)
  EXPECT_EQ(sum.home, "home");
  std::set<uint64_t> seen;
  ForEachTotal(one, [&](std::string_view name, uint64_t value) {
    EXPECT_TRUE(value > 0 && seen.insert(value).second) << name;
  });
}

TEST(ClientTotalsTest, EachCountArrivesInItsTotal) {
  ClientTotals totals;
  totals.AddMatch(3);
  totals.AddFetch();
  totals.AddFetched(
      Path::kLocal,
      {.slices = 4, .corrupt = 5, .bytes = {6, 7}, .lent_bytes = 8, .rows = 9, .corrupt_rows = 10});
  totals.AddPushed(11, 100, 30);
  totals.AddFallback();
  totals.AddCall(StatusCode::kNotFound);
  totals.AddCall(static_cast<StatusCode>(999));
  const ClientStats stats = totals.Get();
  EXPECT_EQ(stats.matches, 1u);
  EXPECT_EQ(stats.matched_blocks, 3u);
  EXPECT_EQ(stats.fetches, 1u);
  EXPECT_EQ(stats.fetched_slices, 4u);
  EXPECT_EQ(stats.corrupt_slices, 5u);
  EXPECT_EQ(stats.fetched_bytes[0], 6u);
  EXPECT_EQ(stats.fetched_bytes[1], 7u);
  EXPECT_EQ(stats.fetched_bytes_by_path[static_cast<size_t>(Path::kLocal)], 13u);
  EXPECT_EQ(stats.lent_bytes, 8u);
  EXPECT_EQ(stats.fetched_rows, 9u);
  EXPECT_EQ(stats.corrupt_rows, 10u);
  EXPECT_EQ(stats.pushed_parts, 11u);
  EXPECT_EQ(stats.pushed_bytes, 100u);
  EXPECT_EQ(stats.pushed_bytes_by_path[static_cast<size_t>(Path::kLocal)], 30u);
  EXPECT_EQ(stats.pushed_bytes_by_path[static_cast<size_t>(Path::kGrpc)], 70u);
  EXPECT_EQ(stats.local_fallbacks, 1u);
  EXPECT_EQ(stats.calls_by_code[static_cast<size_t>(StatusCode::kNotFound)], 1u);
  EXPECT_EQ(stats.calls_by_code[static_cast<size_t>(StatusCode::kUnknown)], 1u);
}

}  // namespace
}  // namespace cairn::client
