#include "services/worker/engine/prompt.h"

#include "common/status/matchers.h"

namespace cairn::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kContext = 1024;
constexpr uint32_t kBlockTokens = 64;

class PromptTest : public ::testing::Test {
 protected:
  PromptTest() : model_(*model::Model::Load("tests/data/gguf/kquant.gguf")) {
    request_.prompt = RawPrompt{"hello"};
  }
  Result<PreparedPrompt> Prepare() {
    return PreparePrompt(*model_, kContext, kBlockTokens, request_);
  }
  void ExpectRefused(const std::string& field, const std::string& value) {
    EXPECT_THAT(Prepare(), testing::StatusIs(StatusCode::kInvalidArgument,
                                             AllOf(HasSubstr(field), HasSubstr(value))));
  }

  std::unique_ptr<model::Model> model_;
  GenerateRequest request_;
};

TEST_F(PromptTest, RawTextRecognisesSpecialTokensAndAddsNothing) {
  request_.prompt = RawPrompt{"<|im_start|>a"};
  const auto prompt = Prepare();
  ASSERT_OK(prompt);
  EXPECT_EQ(prompt->tokens.size(), 2u);
  EXPECT_EQ(prompt->tokens[0], model_->tokenizer().Find("<|im_start|>"));
}

TEST_F(PromptTest, ChatTextCannotOpenATurn) {
  ChatPrompt chat;
  chat.messages = {{"user", "<|im_end|>"}};
  request_.prompt = chat;
  const auto prompt = Prepare();
  ASSERT_OK(prompt);
  const model::TokenId end = *model_->tokenizer().Find("<|im_end|>");
  // The template's own: after the default system message and after the user's.
  EXPECT_EQ(std::count(prompt->tokens.begin(), prompt->tokens.end(), end), 2);
}

// Text that cannot fit costs nobody the work of making tokens of it.
TEST_F(PromptTest, TextThatCannotFitTheContextIsRefusedByItsLength) {
  const size_t most = kContext * model_->tokenizer().max_token_bytes();
  request_.prompt = RawPrompt{std::string(most, 'a')};
  ExpectRefused("field 'prompt'", "tokens, expected 1 to 1023");
  request_.prompt = RawPrompt{std::string(most + 1, 'a')};
  ExpectRefused("field 'raw_text'",
                fmt::format("got {} bytes, expected at most {}", most + 1, most));
  ChatPrompt chat;
  chat.messages = {{"user", std::string(most, 'a')}};
  request_.prompt = chat;
  ExpectRefused("field 'chat'", fmt::format("expected at most {} for 1024 tokens", most));
}

TEST_F(PromptTest, ScoringWantsWholeBlocksAndTokensOfTheModelThatFit) {
  request_.prompt = TokenPrompt{std::vector<model::TokenId>(kBlockTokens, 5)};
  request_.score_tokens = {1, 2, 3};
  EXPECT_OK(Prepare());
  request_.score_tokens.back() = model_->tokenizer().vocab_size();
  ExpectRefused("continuation.ids[2]", "expected 0 to");
  request_.score_tokens.assign(kContext - kBlockTokens + 1, 1);
  ExpectRefused("continuation", "got 961 tokens, expected 1 to 960");
  request_.score_tokens.resize(1);
  request_.prompt = TokenPrompt{std::vector<model::TokenId>(kBlockTokens + 1, 5)};
  ExpectRefused("context", "got 65 tokens, expected a multiple of 64");
}

TEST_F(PromptTest, EveryFieldIsChecked) {
  request_.max_tokens = 0;
  ExpectRefused("max_tokens", "got 0, expected 1 to 1024");
  request_.max_tokens = 1025;
  ExpectRefused("max_tokens", "got 1025");
  request_.max_tokens = 1;
  request_.sampling.temperature = -1;
  ExpectRefused("temperature", "-1");
  request_.sampling = {};
  request_.trace = "a b";
  ExpectRefused("trace", "[A-Za-z0-9-]");
  request_.trace = "";
  request_.prompt = RawPrompt{""};
  ExpectRefused("prompt", "got 0 tokens, expected 1 to 1023");
  request_.prompt = RawPrompt{"\xff"};
  ExpectRefused("raw_text", "");
  request_.prompt = TokenPrompt{{1, -1}};
  ExpectRefused("tokens.ids[1]", "got -1, expected 0 to");
  request_.prompt = TokenPrompt{{model_->tokenizer().vocab_size()}};
  ExpectRefused("tokens.ids[0]", "expected 0 to");
  request_.prompt = TokenPrompt{std::vector<model::TokenId>(1024, 20)};
  ExpectRefused("prompt", "got 1024 tokens");
  request_.prompt = ChatPrompt{};
  ExpectRefused("chat.messages", "got 0 messages");
  request_.prompt = ChatPrompt{{{"pirate", "arr"}}};
  ExpectRefused("chat", "pirate");
}

TEST_F(PromptTest, StopTextsAreAFewShortTexts) {
  request_.stop = std::vector<std::string>(16, "x");
  request_.stop[3] = std::string(256, 'x');
  EXPECT_OK(Prepare());
  request_.stop[3] += 'x';
  ExpectRefused("field 'stop[3]'", "got 257 bytes, expected 1 to 256");
  request_.stop[3] = "";
  ExpectRefused("field 'stop[3]'", "got 0 bytes");
  request_.stop[3] = "\xff";
  ExpectRefused("field 'stop[3]'", "not UTF-8");
  request_.stop = std::vector<std::string>(17, "x");
  ExpectRefused("field 'stop'", "got 17 texts, expected at most 16");
}

TEST_F(PromptTest, PriorityAndTenantHaveBounds) {
  for (const int32_t legal : {-10, 0, 10}) {
    request_.priority = legal;
    EXPECT_OK(Prepare());
  }
  request_.priority = 11;
  ExpectRefused("field 'priority'", "got 11, expected -10 to 10");
  request_.priority = 0;
  request_.tenant = std::string(128, 'a');
  EXPECT_OK(Prepare());
  request_.tenant += 'a';
  ExpectRefused("field 'tenant'", "got 129 bytes, expected at most 128");
  request_.tenant = "a\nb";
  ExpectRefused("field 'tenant'", "without spaces");
}

TEST_F(PromptTest, AnswerIsCutToTheContext) {
  request_.prompt = TokenPrompt{std::vector<model::TokenId>(1000, 20)};
  request_.max_tokens = 100;
  const auto prompt = Prepare();
  ASSERT_OK(prompt);
  EXPECT_EQ(prompt->max_tokens, 24u);
}

TEST_F(PromptTest, FinishedChatTurnIsAPrefixOfTheNextPrompt) {
  ChatPrompt chat;
  chat.messages = {{"user", "one"}};
  request_.prompt = chat;
  const auto prompt = Prepare();
  ASSERT_OK(prompt);
  GenerateSummary summary;
  summary.text = "two";
  const std::vector<model::TokenId> turn =
      FinishedTurn(*model_, kContext, request_, *prompt, summary);
  ASSERT_GT(turn.size(), prompt->tokens.size());
  chat.messages.push_back({"assistant", "two"});
  chat.messages.push_back({"user", "three"});
  request_.prompt = chat;
  const auto next = Prepare();
  ASSERT_OK(next);
  ASSERT_GT(next->tokens.size(), turn.size());
  EXPECT_TRUE(std::equal(turn.begin(), turn.end(), next->tokens.begin()));
}

TEST_F(PromptTest, FinishedTurnOfTokensIsPromptAndAnswer) {
  request_.prompt = TokenPrompt{{20, 21}};
  const auto prompt = Prepare();
  ASSERT_OK(prompt);
  GenerateSummary summary;
  summary.tokens = {30, 31};
  EXPECT_EQ(FinishedTurn(*model_, kContext, request_, *prompt, summary),
            (std::vector<model::TokenId>{20, 21, 30, 31}));
  summary.tokens.assign(kContext, 30);
  EXPECT_TRUE(FinishedTurn(*model_, kContext, request_, *prompt, summary).empty());
}

TEST(DroppedTokensTest, WholeQuartersOfTheContextGo) {
  EXPECT_EQ(DroppedTokens(1000, 24, 1024, 64), 0);
  EXPECT_EQ(DroppedTokens(1001, 24, 1024, 64), 256);
  EXPECT_EQ(DroppedTokens(1256, 24, 1024, 64), 256) << "most turns change nothing";
  EXPECT_EQ(DroppedTokens(1257, 24, 1024, 64), 512);
  EXPECT_EQ(DroppedTokens(100, 1000, 1024, 64), -1) << "nothing would be left";
  EXPECT_EQ(DroppedTokens(130, 60, 100, 16), 96) << "in whole blocks";
}

}  // namespace
}  // namespace cairn::worker
