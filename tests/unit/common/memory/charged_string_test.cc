#include "common/memory/charged_string.h"

#include <gmock/gmock.h>

#include "common/status/matchers.h"

namespace cairn {
namespace {

using cairn::testing::StatusIs;
using ::testing::HasSubstr;

constexpr size_t kPiece = 1000;

TEST(ChargedStringTest, CountsForAsLongAsItLives) {
  const auto budget = std::make_shared<FairBudget>(10'000);
  ChargedString text{ByteShare(budget)};
  EXPECT_OK(text.Append(std::string(kPiece, 'x')));
  EXPECT_FALSE(text.Append(std::string(9'001, 'y')).ok());
  EXPECT_EQ(text.text(), std::string(kPiece, 'x'));
  EXPECT_EQ(budget->used(), kPiece);
  auto shared = ChargedString::Shared(std::move(text));
  const std::shared_ptr<const std::string> second = shared;
  shared.reset();
  EXPECT_EQ(*second, std::string(kPiece, 'x'));
  EXPECT_EQ(budget->used(), kPiece);
}

TEST(ChargedStringTest, ItsChargeStaysWithWhatWasMadeOfIt) {
  const auto budget = std::make_shared<FairBudget>(10'000);
  ChargedString text{ByteShare(budget)};
  ASSERT_OK(text.Append(std::string(kPiece, 'x')));
  {
    const ByteShare share = ChargedString::IntoShare(std::move(text));
    EXPECT_EQ(share.bytes(), kPiece);
    EXPECT_EQ(budget->used(), kPiece);
  }
  EXPECT_EQ(budget->used(), 0u);
}

// A text that grows has more memory than it needs, and at times its old memory, too.
TEST(ChargedStringTest, CountsWhatItOwnsWhateverItGrowsBy) {
  for (const size_t piece : {1, 7, 1000, 60'000}) {
    for (const size_t expected : {0, 50'000, 300'000}) {
      const auto budget = std::make_shared<FairBudget>(10 << 20);
      ChargedString text{ByteShare(budget)};
      text.Expect(expected);
      while (text.size() < 200'000) {
        ASSERT_OK(text.Append(std::string(piece, 'x')));
        ASSERT_EQ(budget->used(), text.owned());
        if (text.owned() > 0) {
          ASSERT_EQ(text.owned(), text.text().capacity());
        }
      }
    }
  }
}

TEST(ChargedStringTest, ALengthThatIsOnlyDeclaredCostsLittle) {
  const auto budget = std::make_shared<FairBudget>(10 << 20);
  ChargedString text{ByteShare(budget)};
  text.Expect(8 << 20);
  EXPECT_EQ(budget->used(), 0u);
  ASSERT_OK(text.Append(std::string(kPiece, 'x')));
  EXPECT_LE(budget->used(), 4 * kPiece);
  // All of it has come: there is no memory for more.
  text.Expect(2 * kPiece);
  ASSERT_OK(text.Append(std::string(kPiece, 'x')));
  EXPECT_LE(budget->used(), 4 * kPiece);
}

TEST(ChargedStringTest, AShortageCostsWhatIsOnlyExpectedFirst) {
  const auto budget = std::make_shared<FairBudget>(3 * kPiece);
  ChargedString text{ByteShare(budget)};
  text.Expect(100 * kPiece);
  ASSERT_OK(text.Append(std::string(kPiece, 'x')));
  EXPECT_EQ(budget->used(), kPiece);
}

TEST(ChargedStringTest, AShortTextLiesInTheObject) {
  const auto budget = std::make_shared<FairBudget>(1);
  ChargedString text{ByteShare(budget)};
  EXPECT_OK(text.Append("0123456789"));
  EXPECT_EQ(text.owned(), 0u);
  const auto charged = ChargedString::Charge(ByteShare(budget), "0123456789");
  ASSERT_OK(charged.status());
  EXPECT_EQ(budget->used(), 0u);
}

TEST(ChargedStringTest, ATextThatWasMadeElsewhereCountsItsMemory) {
  const auto budget = std::make_shared<FairBudget>(10'000);
  std::string made(kPiece, 'x');
  made.reserve(5 * kPiece);
  const auto charged = ChargedString::Charge(ByteShare(budget), std::move(made));
  ASSERT_OK(charged.status());
  EXPECT_EQ(budget->used(), charged->text().capacity());
  EXPECT_GE(budget->used(), 5 * kPiece);
}

TEST(ChargedStringTest, ARefusalNamesItemBytesBoundAndSettingAndCounts) {
  const auto budget =
      std::make_shared<FairBudget>(10'000, BudgetName{.item = "bodies", .setting = "http.bodies"});
  ByteShare others(budget);
  ASSERT_TRUE(others.Resize(8'000));
  ChargedString text{ByteShare(budget)};
  ASSERT_OK(text.Append(std::string(kPiece, 'x')));
  EXPECT_THAT(text.Append(std::string(4'000, 'x')),
              StatusIs(StatusCode::kResourceExhausted,
                       HasSubstr("memory of bodies: 5000 bytes more, where the request has 1000, "
                                 "would exceed its share of the 1000 of 10000 bytes that are free; "
                                 "see http.bodies")));
  EXPECT_EQ(budget->refusals(), 1u);
  EXPECT_FALSE(ChargedString::Charge(ByteShare(budget), std::string(4'000, 'x')).ok());
  EXPECT_EQ(budget->refusals(), 2u);
}

}  // namespace
}  // namespace cairn
