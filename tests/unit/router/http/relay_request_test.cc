#include "services/router/http/relay_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn::router {
namespace {

using Messages = std::vector<model::ChatMessage>;
using ::testing::HasSubstr;

ApiRequest Parsed(Endpoint endpoint, const std::string& body) {
  auto parsed = ParseRelayRequest(endpoint, {{"x-request-id", "7"}}, body);
  const auto* error = std::get_if<ApiError>(&parsed);
  EXPECT_EQ(error, nullptr) << body << error->message;
  if (error != nullptr) return {};
  ApiRequest request = std::get<ApiRequest>(std::move(parsed));
  EXPECT_EQ(*request.generate.raw->body, body);
  return request;
}

ApiError Wrong(Endpoint endpoint, const std::string& body) {
  auto parsed = ParseRelayRequest(endpoint, {}, body);
  const auto* error = std::get_if<ApiError>(&parsed);
  EXPECT_NE(error, nullptr) << body;
  return error == nullptr ? ApiError() : *error;
}

TEST(RelayRequestTest, TheBodyStaysAsItIsAndTheRouterKnowsThePrompt) {
  const ApiRequest request = Parsed(Endpoint::kChat, R"({ "model" : "m", "stream":true,
      "messages":[{"role":"system","content":"be"},
                  {"role":"user","content":[{"type":"text","text":"hi"}]}],
      "max_tokens":5, "logprobs":true, "response_format":{"type":"json_object"}})");
  EXPECT_EQ(request.generate.model, "m");
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.generate.raw->stream);
  EXPECT_TRUE(request.generate.raw->plain);
  EXPECT_EQ(request.generate.raw->path, "/v1/chat/completions");
  EXPECT_EQ(request.generate.raw->headers.size(), 1u);
  EXPECT_EQ(request.generate.max_tokens, 5u);
  const auto& messages = std::get<Messages>(request.generate.prompt);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].role, "system");
  EXPECT_EQ(messages[1].content, "hi");
}

TEST(RelayRequestTest, WhatIsNoTextStandsThereAsItsJson) {
  const ApiRequest request = Parsed(Endpoint::kChat, R"({
      "tools":[{"type":"function"}],
      "messages":[{"role":"user","content":[{"type":"image_url","image_url":"x"}]},
                  {"role":"assistant","content":null,"tool_calls":[{"id":"1"}]},
                  {"role":"tool","tool_call_id":"1","content":"42"}]})");
  EXPECT_FALSE(request.generate.raw->plain);
  const auto& messages = std::get<Messages>(request.generate.prompt);
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[0].role, "tools");
  EXPECT_THAT(messages[1].content, HasSubstr("image_url"));
  EXPECT_THAT(messages[2].content, HasSubstr("tool_calls[{\"id\":\"1\"}]"));
  EXPECT_THAT(messages[3].content, HasSubstr("42"));
}

TEST(RelayRequestTest, PromptsAreTextIdsOrSeveralOfThem) {
  using Ids = std::vector<model::TokenId>;
  const auto prompt = [](const std::string& json) {
    return Parsed(Endpoint::kCompletions, "{\"prompt\":" + json + "}").generate.prompt;
  };
  EXPECT_EQ(std::get<std::string>(prompt("\"a\"")), "a");
  EXPECT_EQ(std::get<std::string>(prompt("[\"a\",\"b\"]")), "a");
  EXPECT_EQ(std::get<Ids>(prompt("[1,2]")), (Ids{1, 2}));
  EXPECT_EQ(std::get<Ids>(prompt("[[3],[4]]")), (Ids{3}));
  EXPECT_EQ(std::get<std::string>(Parsed(Endpoint::kCompletions, "{}").generate.prompt), "");
}

// The engine knows what these mean, or refuses them itself.
TEST(RelayRequestTest, WhatOnlyTheEngineUnderstandsPasses) {
  for (const char* const prompt :
       {"{}", "[]", "[-1]", "[1,\"text\",2]", "7", "{\"prompt_string\":\"x\"}"}) {
    const ApiRequest request =
        Parsed(Endpoint::kCompletions, std::string("{\"prompt\":") + prompt + "}");
    EXPECT_EQ(std::get<std::string>(request.generate.prompt), prompt);
    EXPECT_FALSE(request.generate.raw->plain);
  }
  const ApiRequest chat =
      Parsed(Endpoint::kChat, R"({"messages":[{"role":"user","content":{"text":"x"}}]})");
  EXPECT_EQ(std::get<Messages>(chat.generate.prompt)[0].content, R"({"text":"x"})");
  EXPECT_FALSE(chat.generate.raw->plain);
}

TEST(RelayRequestTest, ALimitIsJudgedByTheEngine) {
  const auto limit = [](const std::string& fields) {
    return Parsed(Endpoint::kCompletions, "{" + fields + "}").generate.max_tokens;
  };
  for (const char* const none : {"-1", "0", "\"x\"", "1.5", "4294967295", "1e300", "null", "[]"}) {
    EXPECT_EQ(limit(std::string("\"max_tokens\":") + none), std::nullopt) << none;
  }
  EXPECT_EQ(limit("\"max_tokens\":64.0"), 64u);
  EXPECT_EQ(limit("\"max_completion_tokens\":7,\"max_tokens\":9"), 7u);
  EXPECT_EQ(limit("\"max_completion_tokens\":-1,\"max_tokens\":9"), 9u);
}

TEST(RelayRequestTest, WrongTypesOfWhatIsReadAreNamed) {
  for (const char* body : {"", "x", "[]", "{", "{\"a\":}"}) {
    EXPECT_EQ(Wrong(Endpoint::kChat, body).code, "invalid_json") << body;
  }
  const auto field = [](Endpoint endpoint, const std::string& body) {
    return Wrong(endpoint, body).param;
  };
  EXPECT_EQ(field(Endpoint::kCompletions, "{\"model\":1}"), "model");
  EXPECT_EQ(field(Endpoint::kCompletions, "{\"stream\":1}"), "stream");
  EXPECT_EQ(field(Endpoint::kChat, "{}"), "messages");
  EXPECT_EQ(field(Endpoint::kChat, "{\"messages\":[]}"), "messages");
  EXPECT_EQ(field(Endpoint::kChat, "{\"messages\":[1]}"), "messages[0]");
  std::string deep = "{\"x\":" + std::string(100, '[') + std::string(100, ']') + "}";
  EXPECT_EQ(Wrong(Endpoint::kChat, deep).code, "json_too_complex");
}

TEST(RelayRequestTest, QuotesAndBracketsInLongTextAreText) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += R"([[{{,\\\"\n)";
  const ApiRequest request =
      Parsed(Endpoint::kCompletions, "{\"prompt\":\"" + text + "\",\"max_tokens\":3}");
  EXPECT_EQ(request.generate.max_tokens, 3u);
  EXPECT_EQ(std::get<std::string>(request.generate.prompt).size(), 8000u);
  EXPECT_EQ(Wrong(Endpoint::kCompletions, "{\"prompt\":\"" + text).code, "invalid_json");
  EXPECT_EQ(Wrong(Endpoint::kCompletions, "{\"prompt\":\"\\").code, "invalid_json");
}

TEST(RelayRequestTest, ThePromptCountsBesideTheBody) {
  const auto budget = std::make_shared<FairBudget>(
      100'000, BudgetName{.item = "bodies", .setting = "http.all_bodies"});
  const std::string json = R"({"prompt":")" + std::string(20'000, 'x') + R"("})";
  const auto parse = [&](const std::string& text) {
    auto body = ChargedString::Charge(ByteShare(budget), text);
    EXPECT_TRUE(body.ok());
    return ParseRelayRequest(Endpoint::kCompletions, {}, *std::move(body));
  };
  {
    const auto parsed = parse(json);
    ASSERT_TRUE(std::holds_alternative<ApiRequest>(parsed));
    EXPECT_EQ(budget->used(), json.size() + 20'000);
  }
  EXPECT_EQ(budget->used(), 0u);
  // The body alone would fit.
  const auto refused = parse(R"({"prompt":")" + std::string(60'000, 'x') + R"("})");
  ASSERT_TRUE(std::holds_alternative<ApiError>(refused));
  const ApiError& error = std::get<ApiError>(refused);
  EXPECT_EQ(error.status, 503);
  EXPECT_TRUE(error.retry_after);
  EXPECT_THAT(error.message,
              ::testing::AllOf(HasSubstr("body: memory of bodies: 60000 bytes more"),
                               HasSubstr("of 100000 bytes"), HasSubstr("see http.all_bodies")));
  EXPECT_EQ(budget->used(), 0u);
}

}  // namespace
}  // namespace cairn::router
