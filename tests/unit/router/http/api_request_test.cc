#include "services/router/http/api_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "services/router/http/json_fields.h"

namespace cairn::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kChat[] = R"("messages":[{"role":"user","content":"hi"}])";

ApiRequest Parsed(Endpoint endpoint, const std::string& body) {
  auto parsed = ParseApiRequest(endpoint, body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << body << ": " << error->message;
    return {};
  }
  return std::get<ApiRequest>(std::move(parsed));
}
ApiRequest Chat(const std::string& fields) {
  return Parsed(Endpoint::kChat,
                "{" + std::string(kChat) + (fields.empty() ? "" : ",") + fields + "}");
}

ApiError Wrong(Endpoint endpoint, const std::string& body) {
  auto parsed = ParseApiRequest(endpoint, body);
  if (std::holds_alternative<ApiRequest>(parsed)) {
    ADD_FAILURE() << "accepted: " << body.substr(0, 200);
    return {};
  }
  return std::get<ApiError>(parsed);
}
// The field that is at fault. The message has to name it, too.
std::string WrongField(const std::string& fields) {
  const ApiError error = Wrong(Endpoint::kChat, "{" + std::string(kChat) + "," + fields + "}");
  EXPECT_EQ(error.status, 400);
  EXPECT_THAT(error.message, HasSubstr("'" + error.param + "'"));
  return error.param;
}

TEST(ApiRequestTest, HasTheDefaultsOfTheApi) {
  const ApiRequest chat = Chat("");
  EXPECT_EQ(chat.generate.temperature, 1);
  EXPECT_EQ(chat.generate.top_p, 0);
  EXPECT_EQ(chat.generate.max_tokens, std::nullopt);
  EXPECT_FALSE(chat.has_seed);
  EXPECT_FALSE(chat.stream);
  EXPECT_EQ(chat.generate.next, NextUse::kUnknown);
  EXPECT_EQ(Parsed(Endpoint::kCompletions, R"({"prompt":"x"})").generate.max_tokens, 16u);
}

TEST(ApiRequestTest, ReadsEachField) {
  const ApiRequest all = Chat(
      R"("model":"m","max_tokens":7,"temperature":0.5,"top_p":0.25,"top_k":40,"seed":-1,)"
      R"("stop":["a","b"],"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,)"
      R"("user":"u","n":1,"unknown":{"anything":[1]})");
  EXPECT_EQ(all.generate.model, "m");
  EXPECT_EQ(all.generate.max_tokens, 7u);
  EXPECT_EQ(all.generate.temperature, 0.5);
  EXPECT_EQ(all.generate.top_p, 0.25);
  EXPECT_EQ(all.generate.top_k, 40u);
  EXPECT_EQ(all.generate.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_TRUE(all.has_seed);
  EXPECT_THAT(all.generate.stop, ElementsAre("a", "b"));
  EXPECT_TRUE(all.stream);
  EXPECT_TRUE(all.include_usage);
  EXPECT_TRUE(all.generate.ignore_eos);
  EXPECT_THAT(Chat(R"("stop":"end")").generate.stop, ElementsAre("end"));
  EXPECT_EQ(Chat(R"("max_completion_tokens":3)").generate.max_tokens, 3u);
  EXPECT_EQ(Chat(R"("max_completion_tokens":3)").generate.max_tokens_name, "max_completion_tokens");
  EXPECT_EQ(Chat(R"("max_tokens":3)").generate.max_tokens_name, "max_tokens");
}

TEST(ApiRequestTest, NullMeansAbsent) {
  const ApiRequest nulls = Chat(
      R"("max_tokens":null,"temperature":null,"stop":null,"stream":null,"stream_options":null,)"
      R"("tools":null,"logprobs":null,"response_format":null)");
  EXPECT_EQ(nulls.generate.temperature, 1);
  EXPECT_THAT(nulls.generate.stop, IsEmpty());
}

TEST(ApiRequestTest, NumbersAreJudgedByTheirValue) {
  EXPECT_EQ(Chat(R"("max_tokens":64.0)").generate.max_tokens, 64u);
  EXPECT_EQ(Chat(R"("max_tokens":6.4e1,"top_k":40.0,"seed":-1.0)").generate.top_k, 40u);
  EXPECT_EQ(WrongField(R"("max_tokens":1e300)"), "max_tokens");
  EXPECT_EQ(WrongField(R"("max_tokens":64.5)"), "max_tokens");
  const ApiRequest ids = Parsed(Endpoint::kCompletions, R"({"prompt":[1.0,2]})");
  EXPECT_EQ(std::get<std::vector<model::TokenId>>(ids.generate.prompt),
            (std::vector<model::TokenId>{1, 2}));
}

// Clients send all fields that they know.
TEST(ApiRequestTest, FieldsThatAskForNothingChangeNothing) {
  Chat(R"("tools":[],"functions":[],"tool_choice":"auto","modalities":[],"logit_bias":{},)"
       R"("n":1.0,"presence_penalty":0.0,"stream_options":{"include_usage":false})");
  Chat(R"("stream":false,"stream_options":{})");
  const auto message = [](const std::string& fields) {
    return Parsed(Endpoint::kChat, R"({"messages":[{"role":"user","content":"a"},)"
                                   R"({"role":"assistant",)" +
                                       fields + "}]}");
  };
  for (const char* const fields :
       {R"("content":"b","tool_calls":[],"function_call":null,"audio":null,"refusal":null)",
        R"("content":null,"tool_calls":[])", R"("tool_calls":[])"}) {
    EXPECT_EQ(std::get<std::vector<model::ChatMessage>>(message(fields).generate.prompt).size(),
              2u);
  }
}

TEST(ApiRequestTest, TopPOfOneIsOffAndOfZeroIsGreedy) {
  EXPECT_EQ(Chat(R"("top_p":1)").generate.top_p, 0);
  const ApiRequest zero = Chat(R"("top_p":0)");
  EXPECT_EQ(zero.generate.top_p, 0);
  EXPECT_EQ(zero.generate.top_k, 1u);
}

TEST(ApiRequestTest, ReadsMessagesAsTextOrAsParts) {
  const ApiRequest request =
      Parsed(Endpoint::kChat,
             R"({"messages":[{"role":"developer","content":"be kind"},)"
             R"({"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},)"
             R"({"role":"assistant","content":"ok","tool_calls":null,"name":"x"}]})");
  const auto& messages = std::get<std::vector<model::ChatMessage>>(request.generate.prompt);
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[0].role, "system");
  EXPECT_EQ(messages[1].content, "ab");
  EXPECT_EQ(messages[2].content, "ok");
}

TEST(ApiRequestTest, ReadsPromptsAsTextOrIds) {
  const auto prompt = [](const std::string& json) {
    return Parsed(Endpoint::kCompletions, "{\"prompt\":" + json + "}").generate.prompt;
  };
  EXPECT_EQ(std::get<std::string>(prompt("\"x\"")), "x");
  EXPECT_EQ(std::get<std::string>(prompt("[\"x\"]")), "x");
  EXPECT_THAT(std::get<std::vector<model::TokenId>>(prompt("[1,2]")), ElementsAre(1, 2));
  EXPECT_THAT(std::get<std::vector<model::TokenId>>(prompt("[[3]]")), ElementsAre(3));
  for (const char* const wrong :
       {"{}", R"({"prompt":null})", R"({"prompt":[]})", R"({"prompt":["a","b"]})",
        R"({"prompt":[[1],[2]]})", R"({"prompt":5})", R"({"prompt":[1,"a"]})", R"({"prompt":[-1]})",
        R"({"prompt":[1.5]})", R"({"prompt":[3000000000]})", R"({"prompt":[[[1]]]})"}) {
    EXPECT_THAT(Wrong(Endpoint::kCompletions, wrong).param, HasSubstr("prompt")) << wrong;
  }
}

TEST(ApiRequestTest, NamesTheFieldThatIsWrong) {
  EXPECT_EQ(WrongField(R"("model":5)"), "model");
  EXPECT_EQ(WrongField(R"("model":"")"), "model");
  EXPECT_EQ(WrongField(R"("max_tokens":0)"), "max_tokens");
  EXPECT_EQ(WrongField(R"("max_tokens":1.5)"), "max_tokens");
  EXPECT_EQ(WrongField(R"("max_tokens":"5")"), "max_tokens");
  EXPECT_EQ(WrongField(R"("max_tokens":18446744073709551615)"), "max_tokens");
  EXPECT_EQ(WrongField(R"("max_tokens":1,"max_completion_tokens":2)"), "max_completion_tokens");
  EXPECT_EQ(WrongField(R"("temperature":2.5)"), "temperature");
  EXPECT_EQ(WrongField(R"("temperature":true)"), "temperature");
  EXPECT_EQ(WrongField(R"("top_p":-0.1)"), "top_p");
  EXPECT_EQ(WrongField(R"("top_k":-2)"), "top_k");
  EXPECT_EQ(WrongField(R"("seed":"x")"), "seed");
  EXPECT_EQ(WrongField(R"("stop":[""])"), "stop[0]");
  EXPECT_EQ(WrongField(R"("stop":5)"), "stop");
  EXPECT_EQ(WrongField(R"("stream":1)"), "stream");
  EXPECT_EQ(WrongField(R"("stream_options":{"include_usage":true})"), "stream_options");
  EXPECT_EQ(WrongField(R"("stream":true,"stream_options":{"include_usage":1})"),
            "stream_options.include_usage");
  EXPECT_EQ(WrongField(R"("user":5)"), "user");
  std::string many = "\"stop\":[\"a\"";
  for (int i = 0; i < 16; ++i) many += ",\"a\"";
  EXPECT_EQ(WrongField(many + "]"), "stop");
}

TEST(ApiRequestTest, NamesTheMessageThatIsWrong) {
  const auto param = [](const std::string& message) {
    return Wrong(Endpoint::kChat, R"({"messages":[{"role":"user","content":"x"},)" + message + "]}")
        .param;
  };
  EXPECT_EQ(param("5"), "messages[1]");
  EXPECT_EQ(param("{}"), "messages[1].role");
  EXPECT_EQ(param(R"({"role":"tool","content":"x"})"), "messages[1].role");
  EXPECT_EQ(param(R"({"role":"user"})"), "messages[1].content");
  EXPECT_EQ(param(R"({"role":"user","content":[]})"), "messages[1].content");
  EXPECT_EQ(param(R"({"role":"user","content":["x"]})"), "messages[1].content[0]");
  EXPECT_EQ(param(R"({"role":"user","content":[{"type":"image_url"}]})"),
            "messages[1].content[0].type");
  EXPECT_EQ(param(R"({"role":"user","content":[{"type":"text","text":5}]})"),
            "messages[1].content[0].text");
  EXPECT_EQ(param(R"({"role":"assistant","content":"x","tool_calls":[{}]})"),
            "messages[1].tool_calls");
  EXPECT_EQ(Wrong(Endpoint::kChat, R"({"messages":[]})").param, "messages");
  EXPECT_EQ(Wrong(Endpoint::kChat, R"({"prompt":"x"})").param, "messages");
}

TEST(ApiRequestTest, RefusesWhatItKnowsAndDoesNotSupport) {
  for (const char* const field :
       {R"("tools":[{"type":"function"}])", R"("response_format":{"type":"json_object"})",
        R"("logprobs":true)", R"("n":2)", R"("presence_penalty":0.5)", R"("logit_bias":{"1":2})",
        R"("tool_choice":"required")", R"("audio":{})", R"("store":true)"}) {
    const ApiError error = Wrong(Endpoint::kChat, "{" + std::string(kChat) + "," + field + "}");
    EXPECT_EQ(error.code, "unsupported_parameter") << field;
    EXPECT_THAT(std::string(field), HasSubstr("\"" + error.param + "\""));
  }
  Chat(R"("tools":[],"response_format":{"type":"text"},"logprobs":false,"presence_penalty":0.0)");
}

TEST(ApiRequestTest, CacheFieldsSayWhetherTheConversationGoesOn) {
  const auto next = [](const std::string& fields) { return Chat(fields).generate.next; };
  EXPECT_EQ(next(R"("prompt_cache_key":"session-1")"), NextUse::kSoon);
  EXPECT_EQ(next(R"("prompt_cache_key":"")"), NextUse::kUnknown);
  EXPECT_EQ(next(R"("prompt_cache_options":{"ttl":"30m"})"), NextUse::kSoon);
  EXPECT_EQ(next(R"("prompt_cache_options":{"ttl":"24h"})"), NextUse::kLater);
  EXPECT_EQ(next(R"("prompt_cache_options":{"mode":"explicit"})"), NextUse::kNever);
  EXPECT_EQ(next(R"("prompt_cache_retention":"24h")"), NextUse::kLater);
  const std::string marked =
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"a",)"
      R"("prompt_cache_breakpoint":{}}]}],"prompt_cache_options":{"mode":"explicit"}})";
  EXPECT_EQ(Parsed(Endpoint::kChat, marked).generate.next, NextUse::kSoon);
  EXPECT_EQ(WrongField(R"("prompt_cache_options":{"ttl":"soon"})"), "prompt_cache_options.ttl");
  EXPECT_EQ(WrongField(R"("prompt_cache_options":{"mode":5})"), "prompt_cache_options.mode");
  EXPECT_EQ(WrongField(R"("prompt_cache_retention":5)"), "prompt_cache_retention");
  EXPECT_EQ(WrongField(R"("prompt_cache_key":5)"), "prompt_cache_key");
}

TEST(ApiRequestTest, RefusesWhatIsNoJsonObject) {
  for (const std::string body : {"", "{", "[]", "5", "{\"a\":1}x", "{\"a\":\"\xff\"}"}) {
    EXPECT_EQ(Wrong(Endpoint::kChat, body).code, "invalid_json") << body;
  }
}

TEST(ApiRequestTest, SaysWhereABodyIsNotJson) {
  const auto message = [](const std::string& body) { return Wrong(Endpoint::kChat, body).message; };
  EXPECT_EQ(message(""),
            "body: got text that is not JSON at line 1, column 1, expected a JSON object");
  EXPECT_THAT(message("{\"a\":1}x"), HasSubstr("at line 1, column 8,"));
  EXPECT_THAT(message("{\n \"a\":}"), HasSubstr("at line 2, column 6,"));
  EXPECT_EQ(message("5"), "body: got 5, expected a JSON object");
  EXPECT_EQ(message("{\"a\":1e999}"),
            "body: got a number that is too large, expected a JSON object");
}

TEST(ApiRequestTest, RefusesDeepAndWideJsonBeforeItIsBuilt) {
  const auto nested = [](size_t depth) {
    return R"({"prompt":"x","z":)" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  Parsed(Endpoint::kCompletions, nested(kMaxJsonDepth - 1));
  EXPECT_EQ(Wrong(Endpoint::kCompletions, nested(kMaxJsonDepth)).code, "json_too_complex");
  EXPECT_EQ(Wrong(Endpoint::kCompletions, nested(1'000'000)).code, "json_too_complex");
  std::string wide = R"({"prompt":"x","z":[0)";
  for (size_t i = 0; i < kMaxJsonValues; ++i) wide += ",0";
  EXPECT_EQ(Wrong(Endpoint::kCompletions, wide + "]}").code, "json_too_complex");
  // Brackets in text are text.
  Parsed(Endpoint::kCompletions, R"({"prompt":"\")" + std::string(100'000, '[') + "\"}");
}

}  // namespace
}  // namespace cairn::router
