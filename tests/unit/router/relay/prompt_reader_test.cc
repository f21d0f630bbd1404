#include "services/router/relay/prompt_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/status/matchers.h"
#include "tests/unit/router/fake_link.h"
#include "tests/unit/router/relay/fake_client.h"

namespace cairn::router {
namespace {

using Json = nlohmann::json;
using Messages = std::vector<model::ChatMessage>;
using TokenIds = std::vector<model::TokenId>;
using ::testing::ElementsAre;

const EngineNamespace kTokens = MakeEngineNamespace(EngineKeys::kTokens, 16);
const EngineNamespace kText = MakeEngineNamespace(EngineKeys::kText, 64);

GenerateRequest Chat(Messages messages) {
  GenerateRequest request;
  request.model = "m";
  request.prompt = std::move(messages);
  return request;
}

TEST(PackTextTest, TextThatGoesOnBeginsAlike) {
  EXPECT_TRUE(PackText("").empty());
  EXPECT_EQ(PackText("abcde").size(), 2u);
  const TokenIds shorter = PackText(TextOf(Chat({{"user", "what is this"}})));
  const TokenIds longer = PackText(
      TextOf(Chat({{"user", "what is this"}, {"assistant", "that"}, {"user", "and this?"}})));
  // All but the last piece, which may have been incomplete.
  EXPECT_TRUE(std::equal(shorter.begin(), shorter.end() - 1, longer.begin()));
  EXPECT_NE(PackText(TextOf(Chat({{"user", "ab"}}))), PackText(TextOf(Chat({{"usera", "b"}}))));
}

TEST(EngineNamespaceTest, KindsAndBlocksAreApart) {
  EXPECT_NE(kTokens.fingerprint, MakeEngineNamespace(EngineKeys::kText, 16).fingerprint);
  EXPECT_NE(kTokens.fingerprint, MakeEngineNamespace(EngineKeys::kTokens, 32).fingerprint);
  EXPECT_EQ(kTokens, MakeEngineNamespace(EngineKeys::kTokens, 16));
}

TEST(ParseTokensTest, ReadsIdsAndNothingElse) {
  auto tokens = ParseTokens(R"({"count":2,"tokens":[5,7],"max_model_len":9})");
  ASSERT_OK(tokens);
  EXPECT_THAT(*tokens, ElementsAre(5, 7));
  for (const char* body : {"", "[1]", "{}", R"({"tokens":"x"})", R"({"tokens":[-1]})",
                           R"({"tokens":[1.5]})", R"({"tokens":[4294967296]})"}) {
    EXPECT_FALSE(ParseTokens(body).ok()) << body;
  }
}

TEST(TokenizeQuestionTest, HasAllThatATemplateMakesTokensOf) {
  EXPECT_EQ(Json::parse(TokenizeQuestion(Chat({{"user", "hi"}}))),
            Json::parse(R"({"model":"m","messages":[{"role":"user","content":"hi"}]})"));
  GenerateRequest text;
  text.prompt = std::string("hi");
  EXPECT_EQ(Json::parse(TokenizeQuestion(text)), Json::parse(R"({"prompt":"hi"})"));
  GenerateRequest tools = Chat({{"tools", "[1]"}, {"user", "hi"}});
  auto raw = std::make_shared<RawCall>();
  raw->plain = false;
  raw->body = std::make_shared<const std::string>(
      R"({"messages":[{"role":"user","content":"hi"}],"tools":[1],"temperature":2})");
  tools.raw = raw;
  EXPECT_EQ(
      Json::parse(TokenizeQuestion(tools)),
      Json::parse(R"({"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[1]})"));
}

class PromptReaderTest : public ::testing::Test {
 protected:
  PromptReaderTest()
      : registry_({.addresses = {"http://a:1"}}, workers_.links(), &clock_,
                  [](const std::string&, const WorkerLoad*) {}) {
    registry_.Tick();
  }
  void Make(bool tokenize) {
    PromptReader::Options options;
    options.tokenize = tokenize;
    reader_ = std::make_unique<PromptReader>(
        options, PromptReader::Parts{.client = &client_, .registry = &registry_, .clock = &clock_});
  }
  void Reach() {
    WorkerInfo info;
    info.engine = true;
    info.models = {{.id = "m", .context_tokens = 0, .object = "{}"}};
    workers_.Reach("http://a:1", info);
  }
  std::optional<EnginePrompt> Read(const GenerateRequest& request) {
    return reader_->Read(request, std::nullopt,
                         [this](EnginePrompt prompt) { later_ = std::move(prompt); });
  }
  FakeClock clock_;
  FakeClient client_{&clock_};
  FakeWorkers workers_;
  WorkerRegistry registry_;
  std::unique_ptr<PromptReader> reader_;
  std::optional<EnginePrompt> later_;
};

TEST_F(PromptReaderTest, IdsAreTokensAndTextIsText) {
  Make(false);
  GenerateRequest ids;
  ids.prompt = TokenIds{1, 2, 3};
  auto prompt = Read(ids);
  ASSERT_TRUE(prompt);
  EXPECT_THAT(prompt->tokens, ElementsAre(1, 2, 3));
  EXPECT_EQ(prompt->space, kTokens);
  prompt = Read(Chat({{"user", "hi"}}));
  ASSERT_TRUE(prompt);
  EXPECT_EQ(prompt->space, kText);
  EXPECT_EQ(reader_->numbers().from_tokens, 1u);
  EXPECT_EQ(reader_->numbers().from_text, 1u);
}

TEST_F(PromptReaderTest, AsksAnEngineOnceForEachPrompt) {
  Make(true);
  Reach();
  const GenerateRequest request = Chat({{"user", std::string(1000, 'x')}});
  EXPECT_FALSE(Read(request));
  ASSERT_EQ(client_.Open("/tokenize").size(), 1u);
  client_.Open("/tokenize")[0]->Answer(200, R"({"tokens":[4,5]})");
  ASSERT_TRUE(later_);
  EXPECT_THAT(later_->tokens, ElementsAre(4, 5));
  EXPECT_EQ(later_->space, kTokens);
  const auto again = Read(request);
  ASSERT_TRUE(again);
  EXPECT_THAT(again->tokens, ElementsAre(4, 5));
  EXPECT_EQ(reader_->numbers().asked, 1u);
}

TEST_F(PromptReaderTest, TextStandsInForAnEngineThatCannotSay) {
  Make(true);
  Reach();
  const GenerateRequest request = Chat({{"user", "hi"}});
  EXPECT_FALSE(Read(request));
  client_.Open("/tokenize")[0]->Answer(404, "{}");
  ASSERT_TRUE(later_);
  EXPECT_EQ(later_->space, kText);
  // It is not asked for a while.
  EXPECT_TRUE(Read(request));
  clock_.Advance(std::chrono::seconds(5));
  EXPECT_FALSE(Read(request));
  client_.Open("/tokenize")[0]->Fail(Errorf(StatusCode::kDeadlineExceeded, "silent"));
  EXPECT_EQ(reader_->numbers().failed, 2u);
}

// It sends a byte now and then, so it is never silent for long.
TEST_F(PromptReaderTest, AnEngineThatIsSlowToTellIsNotWaitedFor) {
  Make(true);
  Reach();
  const GenerateRequest request = Chat({{"user", "hi"}});
  EXPECT_FALSE(Read(request));
  FakeClient::Sent* const sent = client_.Open("/tokenize")[0];
  client_.Pass(std::chrono::milliseconds(1900));
  EXPECT_FALSE(sent->call->cancelled);
  client_.Pass(std::chrono::milliseconds(200));
  EXPECT_TRUE(sent->call->cancelled);
  sent->Fail(Errorf(StatusCode::kCancelled, "cancelled"));
  ASSERT_TRUE(later_);
  EXPECT_EQ(later_->space, kText);
}

TEST_F(PromptReaderTest, ALongPromptSaysNothingAboutTheEngine) {
  Make(true);
  Reach();
  const GenerateRequest request = Chat({{"user", std::string(100'000, 'x')}});
  EXPECT_FALSE(Read(request));
  client_.Open("/tokenize")[0]->Fail(Errorf(StatusCode::kDeadlineExceeded, "silent"));
  EXPECT_TRUE(later_);
  EXPECT_FALSE(Read(Chat({{"user", "hi"}})));  // It is asked for the next one.
  client_.Open("/tokenize")[0]->Answer(200, R"({"tokens":[4]})");
}

TEST_F(PromptReaderTest, AQuestionCountsWithItsRequestAndTextStandsInWithoutRoom) {
  Make(true);
  Reach();
  const auto budget = std::make_shared<FairBudget>(4096);
  GenerateRequest request = Chat({{"user", std::string(1000, 'x')}});
  request.share = ByteShare(budget);
  EXPECT_FALSE(Read(request));
  EXPECT_GT(budget->used(), 1000u);
  client_.Open("/tokenize")[0]->Answer(200, R"({"tokens":[4]})");
  client_.sent.clear();
  EXPECT_EQ(budget->used(), 0u);
  GenerateRequest large = Chat({{"user", std::string(5000, 'x')}});
  large.share = ByteShare(budget);
  const auto prompt = Read(large);
  ASSERT_TRUE(prompt);
  EXPECT_EQ(prompt->space, kText);
}

TEST_F(PromptReaderTest, NobodyToAskIsText) {
  Make(true);
  EXPECT_TRUE(Read(Chat({{"user", "hi"}})));
  Reach();
  GenerateRequest other = Chat({{"user", "hi"}});
  other.model = "unknown";
  EXPECT_TRUE(Read(other));
  EXPECT_TRUE(client_.sent.empty());
}

}  // namespace
}  // namespace cairn::router
