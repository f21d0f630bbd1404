#include "tools/cairn/fidelity/plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/status/matchers.h"

namespace cairn::cli {
namespace {

using ::testing::HasSubstr;

// One token a character.
Result<std::vector<int32_t>> Characters(const std::string& text) {
  return std::vector<int32_t>(text.begin(), text.end());
}
std::string Text(const std::vector<int32_t>& ids) { return {ids.begin(), ids.end()}; }

TEST(PlanTest, ADocumentIsItsFirstTokensAndWhatFollows) {
  FidelitySuite suite;
  suite.documents = {{.name = "d", .text = std::string(200, 'a') + std::string(100, 'b')}};
  const auto plan = PlanFidelity(
      suite, {.block_tokens = 64, .context_tokens = 128, .continuation_tokens = 80}, Characters);
  ASSERT_OK(plan);
  ASSERT_EQ(plan->size(), 1u);
  EXPECT_EQ(plan->front().context.size(), 128u);
  ASSERT_EQ(plan->front().continuations.size(), 1u);
  EXPECT_EQ(Text(plan->front().continuations[0].tokens),
            std::string(72, 'a') + std::string(8, 'b'));
  EXPECT_EQ(plan->front().continuations[0].answer_begin, 1u);
}

TEST(PlanTest, AShortDocumentIsNamed) {
  FidelitySuite suite;
  suite.documents = {{.name = "tiny", .text = "abc"}};
  EXPECT_THAT(PlanFidelity(suite, {}, Characters),
              testing::StatusIs(StatusCode::kInvalidArgument, HasSubstr("'tiny': 3 tokens")));
}

FidelitySuite Needles(size_t hay) {
  FidelitySuite suite;
  suite.needles = {
      {.name = "n",
       .facts = {"F1.", "F2.", "F3."},
       .hay = std::vector<std::string>(hay, std::string(98, '-')),
       .cases = {{.kind = "k", .question = "Q?", .opening = "A is", .answer = " 42"}}}};
  return suite;
}

TEST(PlanTest, NeedlesLieInTheFirstAndTheLastBlockOfWholeBlocks) {
  for (const size_t hay : {3u, 4u, 9u, 30u}) {
    const auto plan = PlanFidelity(Needles(hay), {.needle_tokens = 1024}, Characters);
    ASSERT_OK(plan);
    const std::string context = Text(plan->front().context);
    EXPECT_EQ(context.size() % 64, 0u);
    EXPECT_LE(context.size(), 1024u);
    EXPECT_LT(context.find("F1."), 64u);
    EXPECT_GE(context.find("F3."), context.size() - 64);
    const size_t second = context.find("F2.");
    EXPECT_NEAR(static_cast<double>(second), static_cast<double>(context.size()) / 2, 40);
  }
}

TEST(PlanTest, OnlyTheAnswersTokensAreJudged) {
  const auto plan = PlanFidelity(Needles(10), {}, Characters);
  ASSERT_OK(plan);
  const ScoredContinuation& c = plan->front().continuations.front();
  const std::string text = Text(c.tokens);
  EXPECT_EQ(text.substr(c.answer_begin), " 42");
  EXPECT_EQ(text, "Q?<|im_end|>\n<|im_start|>assistant\nA is 42");
}

TEST(PlanTest, ASecondTurnFollowsAQuestionAndItsAnswerInTheContext) {
  FidelitySuite suite = Needles(10);
  suite.second_turn = true;
  suite.needles[0].cases.push_back(
      {.kind = "k", .question = "First?", .opening = "It is", .answer = " 7"});
  const auto plan = PlanFidelity(suite, {}, Characters);
  ASSERT_OK(plan);
  const std::string context = Text(plan->front().context);
  EXPECT_EQ(context.size() % 64, 0u);
  EXPECT_TRUE(
      context.ends_with("F3.\n\nFirst?<|im_end|>\n<|im_start|>assistant\nIt is 7.<|im_end|>\n"))
      << context;
  // Questions of the first turn are not asked again.
  ASSERT_EQ(plan->front().continuations.size(), 1u);
  const ScoredContinuation& c = plan->front().continuations.front();
  EXPECT_EQ(Text(c.tokens), "<|im_start|>user\nQ?<|im_end|>\n<|im_start|>assistant\nA is 42");
  EXPECT_EQ(Text(c.tokens).substr(c.answer_begin), " 42");
}

TEST(PlanTest, ASecondTurnNeedsTwoQuestions) {
  FidelitySuite suite = Needles(10);
  suite.second_turn = true;
  EXPECT_THAT(PlanFidelity(suite, {}, Characters),
              testing::StatusIs(StatusCode::kInvalidArgument, HasSubstr("1 cases")));
}

TEST(PlanTest, TooLittleHayIsNamed) {
  EXPECT_THAT(PlanFidelity(Needles(0), {}, Characters),
              testing::StatusIs(StatusCode::kInvalidArgument, HasSubstr("needle context 'n'")));
}

}  // namespace
}  // namespace cairn::cli
