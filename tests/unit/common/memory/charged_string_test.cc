#include "common/memory/charged_string.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(ChargedStringTest, CountsForAsLongAsItLives) {
  const auto budget = std::make_shared<FairBudget>(100);
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
  const auto budget = std::make_shared<FairBudget>(100);
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
