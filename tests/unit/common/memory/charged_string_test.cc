#include "common/memory/charged_string.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(ByteShareTest, GoesBackWithItsHolderWhereverThatIs) {
  const auto budget = std::make_shared<ByteBudget>(100);
  {
    ByteShare share(budget);
    EXPECT_TRUE(share.Resize(40));
    EXPECT_FALSE(share.Resize(80));  // It would hold more than it leaves to others.
    EXPECT_EQ(share.bytes(), 40u);
    ByteShare moved = std::move(share);
    EXPECT_EQ(budget->used(), 40u);
    EXPECT_TRUE(moved.Resize(10));
    EXPECT_EQ(budget->used(), 10u);
    ByteShare other = moved.Another();
    EXPECT_TRUE(other.Resize(20));
    EXPECT_EQ(budget->used(), 30u);
    moved = std::move(other);
    EXPECT_EQ(budget->used(), 20u);
  }
  EXPECT_EQ(budget->used(), 0u);
}

TEST(ByteShareTest, OfNoBudgetItRefusesNothing) {
  ByteShare share;
  EXPECT_TRUE(share.Resize(uint64_t{1} << 60));
  share.Clear();
  EXPECT_EQ(share.bytes(), 0u);
}

TEST(ChargedStringTest, CountsForAsLongAsItLives) {
  const auto budget = std::make_shared<ByteBudget>(100);
  ChargedString text{ByteShare(budget)};
  EXPECT_TRUE(text.Append("0123456789"));
  EXPECT_FALSE(text.Append(std::string(91, 'x')));
  EXPECT_EQ(text.text(), "0123456789");
  EXPECT_EQ(budget->used(), 10u);
  auto shared = ChargedString::Shared(std::move(text));
  const std::shared_ptr<const std::string> second = shared;
  shared.reset();
  EXPECT_EQ(*second, "0123456789");
  EXPECT_EQ(budget->used(), 10u);
}

TEST(ChargedStringTest, ItsChargeStaysWithWhatWasMadeOfIt) {
  const auto budget = std::make_shared<ByteBudget>(100);
  ChargedString text{ByteShare(budget)};
  ASSERT_TRUE(text.Append("0123456789"));
  {
    const ByteShare share = ChargedString::IntoShare(std::move(text));
    EXPECT_EQ(share.bytes(), 10u);
    EXPECT_EQ(budget->used(), 10u);
  }
  EXPECT_EQ(budget->used(), 0u);
}

}  // namespace
}  // namespace cairn
