#include "services/cache/cluster/peer/plan_table.h"

#include <gtest/gtest.h>

#include <cstring>

namespace cairn::cache {
namespace {

BlockKey KeyOf(uint64_t n) {
  BlockKey key;
  std::memcpy(key.bytes.data(), &n, sizeof(n));
  return key;
}

TEST(PlanTableTest, ManyPlansOfLongNamesStayWithinTheBound) {
  constexpr size_t kBlocks = 1024;
  PlanTable table(kBlocks);
  const std::vector<std::string> members(8, std::string(128, 'm'));
  uint64_t most = 0;
  for (uint64_t n = 0; n < 50 * kBlocks; ++n) {
    const BlockKey key = KeyOf(n);
    table.Put({}, {&key, 1}, members);
    most = std::max(most, table.bytes());
    ASSERT_NE(table.Find({}, key), nullptr);
  }
  // Two plans more than fit, each of some 1.4 kB.
  EXPECT_LE(most, kBlocks * PlanTable::kMostBytesOfABlock + 2 * 2048);
  EXPECT_EQ(table.Find({}, KeyOf(0)), nullptr);
}

TEST(PlanTableTest, APlanThatIsPutAgainCountsOnce) {
  PlanTable table(1024);
  const BlockKey kept = KeyOf(1), again = KeyOf(2);
  table.Put({}, {&kept, 1}, {"a"});
  table.Put({}, {&again, 1}, {"b"});
  const uint64_t bytes = table.bytes();
  for (int i = 0; i < 10'000; ++i) table.Put({}, {&again, 1}, {"b"});
  EXPECT_EQ(table.bytes(), bytes);
  EXPECT_NE(table.Find({}, kept), nullptr);
}

}  // namespace
}  // namespace cairn::cache
