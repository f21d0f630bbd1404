#include "services/worker/engine/answer.h"

#include <memory>
#include <vector>

#include "common/status/matchers.h"
#include "model/model.h"

namespace cairn::worker {
namespace {

class AnswerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto model = model::Model::Load("tests/data/gguf/kquant.gguf");
    ASSERT_OK(model);
    model_ = *std::move(model);
    auto ids = tokenizer().Encode("stop", false);
    ASSERT_OK(ids);
    ids_ = *std::move(ids);
    request_.max_tokens = 8;
  }
  const model::Tokenizer& tokenizer() const { return model_->tokenizer(); }
  // Gives the answer logits of which the token has the highest.
  static Answer::Next Take(Answer& answer, model::TokenId token) {
    std::vector<float> logits(static_cast<size_t>(token) + 1, 0.0f);
    logits.back() = 1.0f;
    const auto next = answer.Take(logits);
    EXPECT_OK(next);
    return next.ok() ? *next : Answer::Next();
  }
  std::string TakeAll(Answer& answer) const {
    std::string text;
    for (const model::TokenId id : ids_) {
      const Answer::Next next = Take(answer, id);
      EXPECT_EQ(next.token, id);
      EXPECT_FALSE(next.ended);
      text += next.text;
    }
    return text;
  }

  std::unique_ptr<model::Model> model_;
  std::vector<model::TokenId> ids_;  // The tokens of "stop".
  GenerateRequest request_;
};

TEST_F(AnswerTest, TokensBecomeText) {
  Answer answer(request_, tokenizer());
  EXPECT_EQ(TakeAll(answer), "stop");
  EXPECT_FALSE(answer.stopped());
  EXPECT_EQ(answer.Finish(), "");
}

TEST_F(AnswerTest, TextThatMayBeginAStopTextComesAtTheEnd) {
  request_.stop = {"stopped"};
  Answer answer(request_, tokenizer());
  EXPECT_EQ(TakeAll(answer), "");
  EXPECT_FALSE(answer.stopped());
  EXPECT_EQ(answer.Finish(), "stop");
}

TEST_F(AnswerTest, AStopTextEndsTheAnswerBeforeIt) {
  request_.stop = {"op"};
  Answer answer(request_, tokenizer());
  EXPECT_EQ(TakeAll(answer), "st");
  EXPECT_TRUE(answer.stopped());
  EXPECT_EQ(answer.Finish(), "");
}

TEST_F(AnswerTest, TheModelEndsItUnlessTheRequestIgnoresThat) {
  const std::optional<model::TokenId> eos = tokenizer().eos();
  ASSERT_TRUE(eos);
  Answer answer(request_, tokenizer());
  EXPECT_TRUE(Take(answer, *eos).ended);
  request_.ignore_eos = true;
  Answer longer(request_, tokenizer());
  EXPECT_FALSE(Take(longer, *eos).ended);
}

TEST_F(AnswerTest, TheDigestIsThatOfAllLogits) {
  request_.want_logits_digest = true;
  Answer answer(request_, tokenizer());
  const std::vector<float> first = {0.5f, 1.0f};
  const std::vector<float> second = {2.0f, 1.0f};
  ASSERT_OK(answer.Take(first));
  ASSERT_OK(answer.Take(second));
  EXPECT_EQ(answer.LogitsDigest(), Sha256()
                                       .Update(std::as_bytes(std::span(first)))
                                       .Update(std::as_bytes(std::span(second)))
                                       .Finish());
}

}  // namespace
}  // namespace cairn::worker
