#include "services/cache/store/state/memory_account.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace cairn::cache {
namespace {

MemoryAccount::Bounds BoundsOf(MemoryItem item, uint64_t bytes) {
  MemoryAccount::Bounds bounds{};
  bounds[static_cast<size_t>(item)] = bytes;
  return bounds;
}

TEST(MemoryAccountTest, ARefusalNamesTheItemTheBytesTheBoundAndTheSetting) {
  MemoryAccount account(BoundsOf(MemoryItem::kNamespaces, 100));
  const auto first = account.Charge(MemoryItem::kNamespaces, 60);
  ASSERT_TRUE(first.ok());
  const auto second = account.Charge(MemoryItem::kNamespaces, 41);
  ASSERT_EQ(second.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(second.status().message(),
            "memory of namespaces: 41 bytes more would exceed 60 of 100 bytes in use; see "
            "limits.namespace_memory");
  EXPECT_EQ(account.refusals(MemoryItem::kNamespaces), 1u);
  EXPECT_EQ(account.used(MemoryItem::kNamespaces), 60u);
}

TEST(MemoryAccountTest, TheWholeBoundMayBeUsedAndComesBack) {
  MemoryAccount account(BoundsOf(MemoryItem::kSessions, 100));
  {
    const auto all = account.Charge(MemoryItem::kSessions, 100);
    ASSERT_TRUE(all.ok());
    EXPECT_FALSE(account.Charge(MemoryItem::kSessions, 1).ok());
  }
  EXPECT_EQ(account.used(MemoryItem::kSessions), 0u);
  EXPECT_TRUE(account.Charge(MemoryItem::kSessions, 100).ok());
}

TEST(MemoryAccountTest, ANumberNearTheLargestDoesNotWrap) {
  MemoryAccount account(BoundsOf(MemoryItem::kWatches, UINT64_MAX - 1));
  const auto some = account.Charge(MemoryItem::kWatches, 16);
  ASSERT_TRUE(some.ok());
  EXPECT_FALSE(account.Charge(MemoryItem::kWatches, UINT64_MAX).ok());
  EXPECT_FALSE(account.Charge(MemoryItem::kWatches, UINT64_MAX - 16).ok());
  EXPECT_EQ(account.used(MemoryItem::kWatches), 16u);
}

TEST(MemoryAccountTest, AChargeGrowsWithinTheBoundAndShrinksAlways) {
  MemoryAccount account(BoundsOf(MemoryItem::kFetchHeaders, 100));
  auto charge = account.Charge(MemoryItem::kFetchHeaders, 10);
  ASSERT_TRUE(charge.ok());
  EXPECT_TRUE(charge->Resize(100).ok());
  EXPECT_EQ(charge->Resize(101).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(charge->bytes(), 100u);
  EXPECT_TRUE(charge->Resize(1).ok());
  EXPECT_EQ(account.used(MemoryItem::kFetchHeaders), 1u);
}

TEST(MemoryAccountTest, AMovedChargeIsGivenBackOnce) {
  MemoryAccount account(BoundsOf(MemoryItem::kRpc, 100));
  {
    MemoryCharge kept;
    {
      auto charge = account.Charge(MemoryItem::kRpc, 70);
      ASSERT_TRUE(charge.ok());
      kept = *std::move(charge);
    }
    EXPECT_EQ(account.used(MemoryItem::kRpc), 70u);
    auto other = account.Charge(MemoryItem::kRpc, 20);
    ASSERT_TRUE(other.ok());
    kept = *std::move(other);
    EXPECT_EQ(account.used(MemoryItem::kRpc), 20u);
  }
  EXPECT_EQ(account.used(MemoryItem::kRpc), 0u);
}

TEST(MemoryAccountTest, ThreadsTogetherNeverExceedTheBound) {
  MemoryAccount account(BoundsOf(MemoryItem::kTransfers, 64));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&account] {
      for (int j = 0; j < 2000; ++j) {
        const auto charge = account.Charge(MemoryItem::kTransfers, 20);
        EXPECT_LE(account.used(MemoryItem::kTransfers), 64u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(account.used(MemoryItem::kTransfers), 0u);
}

TEST(MemoryAccountTest, EachItemHasANameOfItsOwn) {
  std::vector<std::string> names;
  for (size_t i = 0; i < kMemoryItems; ++i) {
    names.emplace_back(Name(static_cast<MemoryItem>(i)));
    EXPECT_FALSE(names.back().empty());
    for (size_t j = 0; j < i; ++j) EXPECT_NE(names[i], names[j]);
  }
}

TEST(MemoryAccountTest, TheSumOfAllBoundsDoesNotWrap) {
  EXPECT_EQ(Sum(BoundsOf(MemoryItem::kDisk, 7)), 7u);
  EXPECT_EQ(Sum(MemoryAccount::Unbounded()), UINT64_MAX);
}

}  // namespace
}  // namespace cairn::cache
