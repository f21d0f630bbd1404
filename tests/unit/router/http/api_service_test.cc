// OpenAI's API over a router without workers, and without a network.
#include "services/router/http/api_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "services/router/http/http_edge.h"
#include "tests/support/captured_log.h"
#include "tests/support/fake_router.h"

namespace cairn::router {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr char kChatBody[] = R"({"messages":[{"role":"user","content":"hi"}]})";

// Not thread-safe: the tests have one thread.
class FakeResponder final : public http::Responder {
 public:
  void Send(http::Response response) override {
    head = std::move(response);
    body = head->body;
    ended = true;
  }
  void BeginStream(http::Response response) override {
    head = std::move(response);
    body = head->body;
  }
  bool Write(std::string_view data) override {
    body += data;
    return true;
  }
  void End() override { ended = true; }
  void OnAbort(std::function<void()> call) override { aborted = std::move(call); }
  void Abort() override {}

  std::string Header(const std::string& name) const {
    for (const http::Header& header : head->headers) {
      if (http::EqualNames(header.name, name)) return header.value;
    }
    return "";
  }
  Json json() const { return Json::parse(body); }
  // The events of a stream. "[DONE]" becomes a text.
  std::vector<Json> events() const {
    std::vector<Json> all;
    for (size_t at = 0; at < body.size();) {
      const size_t end = body.find("\n\n", at);
      EXPECT_EQ(body.substr(at, 6), "data: ");
      const std::string data = body.substr(at + 6, end - at - 6);
      all.push_back(data == "[DONE]" ? Json(data) : Json::parse(data));
      at = end + 2;
    }
    return all;
  }

  std::optional<http::Response> head;
  std::string body;
  bool ended = false;
  std::function<void()> aborted;
};

class ApiServiceTest : public ::testing::Test {
 protected:
  ApiServiceTest() {
    options_.unix_seconds = [] { return 1'700'000'000; };
    options_.random = [] { return 0x1234u; };
    Make();
  }
  void Make() { service_ = std::make_unique<ApiService>(&router_, options_); }

  std::shared_ptr<FakeResponder> Ask(const std::string& method, const std::string& path,
                                     const std::string& body = "",
                                     std::vector<http::Header> headers = {}) {
    auto responder = std::make_shared<FakeResponder>();
    service_->Handle(
        {.method = method, .path = path, .query = "", .headers = std::move(headers), .body = body},
        responder);
    return responder;
  }
  std::shared_ptr<FakeResponder> Chat(const std::string& body = kChatBody,
                                      std::vector<http::Header> headers = {}) {
    return Ask("POST", "/v1/chat/completions", body, std::move(headers));
  }
  static std::string Streamed(const std::string& more = "") {
    return R"({"messages":[{"role":"user","content":"hi"}],"stream":true)" + more + "}";
  }
  static GenerateSummary Summary() {
    return {.prompt_tokens = 10,
            .cached_tokens = 8,
            .completion_tokens = 2,
            .finish_reason = "stop",
            .text_tail = "!"};
  }
  uint64_t Answers(Route route, int code) {
    const ApiStats stats = service_->GetStats();
    const auto found = stats.answers.find({route, code});
    return found == stats.answers.end() ? 0 : found->second;
  }

  FakeRouter router_;
  ApiService::Options options_;
  std::unique_ptr<ApiService> service_;
};

TEST_F(ApiServiceTest, AnswersAChat) {
  const auto responder = Chat();
  EXPECT_FALSE(responder->head.has_value());
  const auto running = router_.Take();
  EXPECT_EQ(running.request.seed, 0x1234u);  // Not asked for, so it is drawn.
  running.observer->OnToken(1, "Hel");
  running.observer->OnToken(2, "");
  running.observer->OnToken(3, "lo");
  running.observer->OnDone(Summary());
  EXPECT_TRUE(responder->ended);
  EXPECT_EQ(responder->head->status, 200);
  EXPECT_EQ(responder->json(),
            Json::parse(R"({"id":"chatcmpl-0000000000001234","object":"chat.completion",
      "created":1700000000,"model":"fake","choices":[{"index":0,"finish_reason":"stop",
      "logprobs":null,"message":{"role":"assistant","content":"Hello!","refusal":null}}],
      "usage":{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12,
      "prompt_tokens_details":{"cached_tokens":8}}})"));
  EXPECT_EQ(responder->Header("x-request-id"), "chatcmpl-0000000000001234");
  EXPECT_EQ(Answers(Route::kChat, 200), 1u);
}

class LongBodiesTest : public ApiServiceTest {
 protected:
  LongBodiesTest() {
    options_.reads = &reads_;
    Make();
  }
  ~LongBodiesTest() override { executor_.RunAll(); }

  static std::string Long() {
    return R"({"prompt":"hi","user":")" + std::string(BodyReads::kShort, 'a') + "\"}";
  }

  ManualExecutor executor_;
  BodyReads reads_{{}, &executor_, &SteadyClock::Get()};
};

TEST_F(LongBodiesTest, HoldUpNobodyWhoseBodyIsShort) {
  const auto waits = Ask("POST", "/v1/completions", Long());
  EXPECT_EQ(router_.waiting(), 0u);
  Chat();
  EXPECT_EQ(std::get<std::vector<model::ChatMessage>>(router_.Take().request.prompt).size(), 1u);
  executor_.RunAll();
  EXPECT_EQ(std::get<std::string>(router_.Take().request.prompt), "hi");
  EXPECT_FALSE(waits->ended);
}

TEST_F(LongBodiesTest, OfAClientThatHasGoneIsNotRead) {
  const auto responder = Ask("POST", "/v1/completions", Long());
  responder->aborted();
  executor_.RunAll();
  EXPECT_EQ(router_.waiting(), 0u);
  EXPECT_EQ(service_->GetStats().aborted_calls, 1u);
}

TEST_F(LongBodiesTest, AreRefusedByWhatIsInThem) {
  const auto responder = Ask("POST", "/query", Long());
  EXPECT_FALSE(responder->ended);
  executor_.RunAll();
  EXPECT_EQ(responder->head->status, 400);
  EXPECT_EQ(responder->json()["error"]["param"], "token_ids");
}

TEST_F(ApiServiceTest, AnswersACompletion) {
  const auto responder =
      Ask("POST", "/v1/completions", R"({"prompt":"hi","model":"fake","seed":7})");
  const auto running = router_.Take();
  EXPECT_EQ(std::get<std::string>(running.request.prompt), "hi");
  EXPECT_EQ(running.request.seed, 7u);
  GenerateSummary summary = Summary();
  summary.finish_reason = "deadline";
  running.observer->OnDone(summary);
  const Json json = responder->json();
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["choices"][0]["text"], "!");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
}

TEST_F(ApiServiceTest, StreamsAChat) {
  const auto responder = Chat(Streamed());
  const auto running = router_.Take();
  EXPECT_FALSE(responder->head.has_value());  // An error could still have its status code.
  running.observer->OnToken(1, "He\"");
  EXPECT_EQ(service_->GetStats().open_streams, 1u);
  EXPECT_THAT(responder->head->content_type, HasSubstr("text/event-stream"));
  running.observer->OnToken(2, "");
  running.observer->OnDone(Summary());
  const std::vector<Json> events = responder->events();
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(events[1]["choices"][0]["delta"]["content"], "He\"");
  EXPECT_EQ(events[2]["choices"][0]["delta"]["content"], "!");
  EXPECT_EQ(events[3]["choices"][0]["finish_reason"], "stop");
  EXPECT_FALSE(events[3].contains("usage"));
  EXPECT_EQ(events[4], "[DONE]");
  EXPECT_TRUE(responder->ended);
  EXPECT_EQ(service_->GetStats().open_streams, 0u);
  EXPECT_EQ(service_->GetStats().failed_streams, 0u);
}

TEST_F(ApiServiceTest, StreamsUsageWhereItIsAskedFor) {
  const auto responder =
      Ask("POST", "/v1/completions",
          R"({"prompt":"x","stream":true,"stream_options":{"include_usage":true}})");
  const auto running = router_.Take();
  running.observer->OnToken(1, "a");
  running.observer->OnDone(Summary());
  const std::vector<Json> events = responder->events();
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0]["choices"][0]["text"], "a");
  EXPECT_TRUE(events[0].contains("usage"));
  EXPECT_TRUE(events[0]["usage"].is_null());
  EXPECT_EQ(events[3]["choices"], Json::array());
  EXPECT_EQ(events[3]["usage"]["prompt_tokens_details"]["cached_tokens"], 8);
}

TEST_F(ApiServiceTest, AnErrorInMidStreamIsTheLastEvent) {
  const auto responder = Chat(Streamed());
  const auto running = router_.Take();
  running.observer->OnToken(1, "a");
  running.observer->OnError({.status = Errorf(StatusCode::kUnavailable, "the worker has gone")});
  const std::vector<Json> events = responder->events();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[2]["error"]["message"], "the worker has gone");
  EXPECT_EQ(events[2]["error"]["type"], "server_error");
  EXPECT_TRUE(responder->ended);
  EXPECT_EQ(service_->GetStats().failed_streams, 1u);
  EXPECT_EQ(service_->GetStats().open_streams, 0u);
}

TEST_F(ApiServiceTest, ErrorsOfTheRouterHaveTheShapeOfTheApi) {
  const struct {
    StatusCode code;
    int status;
    std::string type;
  } kCases[] = {{StatusCode::kInvalidArgument, 400, "invalid_request_error"},
                // A 404 is about the model.
                {StatusCode::kNotFound, 500, "server_error"},
                {StatusCode::kResourceExhausted, 429, "rate_limit_error"},
                {StatusCode::kUnavailable, 503, "server_error"},
                {StatusCode::kPermissionDenied, 403, "permission_error"},
                {StatusCode::kInternal, 500, "server_error"}};
  for (const auto& each : kCases) {
    const auto responder = Chat(Streamed());
    router_.Take().observer->OnError({.status = Errorf(each.code, "why"),
                                      .field = "max_tokens",
                                      .retry_after = std::chrono::milliseconds(1500)});
    EXPECT_EQ(responder->head->status, each.status);
    EXPECT_EQ(responder->json()["error"]["type"], each.type);
    EXPECT_EQ(responder->json()["error"]["message"], "why");
    EXPECT_EQ(responder->json()["error"]["param"], "max_tokens");
    EXPECT_EQ(responder->Header("Retry-After"), "2");
  }
  EXPECT_EQ(Answers(Route::kChat, 500), 2u);
  EXPECT_EQ(Answers(Route::kChat, 429), 1u);
}

TEST_F(ApiServiceTest, AModelThatIsNotServedIsNotFound) {
  const auto responder = Chat();
  router_.Take().observer->OnError(
      {.status = Errorf(StatusCode::kNotFound, "why"), .field = "model"});
  EXPECT_EQ(responder->head->status, 404);
  EXPECT_EQ(responder->json()["error"]["code"], "model_not_found");
}

TEST_F(ApiServiceTest, APromptThatIsTooLongHasTheCodeThatClientsLookFor) {
  const auto responder = Chat(Streamed());
  router_.Take().observer->OnError(
      {.status = InvalidArgument("why"), .field = "messages", .prompt_too_long = true});
  EXPECT_EQ(responder->head->status, 400);
  EXPECT_EQ(responder->json()["error"]["code"], "context_length_exceeded");
}

TEST_F(ApiServiceTest, AClientThatGoesCancelsItsCall) {
  const auto responder = Chat(Streamed());
  router_.Take().observer->OnToken(1, "a");
  EXPECT_EQ(router_.cancelled(), 0);
  responder->aborted();
  EXPECT_EQ(router_.cancelled(), 1);
  EXPECT_EQ(service_->GetStats().aborted_calls, 1u);
  EXPECT_EQ(service_->GetStats().open_streams, 0u);  // The observer has gone with the call.
}

TEST_F(ApiServiceTest, HeadersSayPriorityHintAndTrace) {
  Chat(kChatBody,
       {{"X-Cairn-Priority", "-3"}, {"x-cairn-next", "later"}, {"x-cairn-trace", "abc-1"}});
  const GenerateRequest request = router_.Take().request;
  EXPECT_EQ(request.priority, -3);
  EXPECT_EQ(request.next, NextUse::kLater);
  EXPECT_EQ(request.names.trace, "abc-1");
  for (const http::Header& header : std::vector<http::Header>{{"x-cairn-priority", "11"},
                                                              {"x-cairn-priority", "x"},
                                                              {"x-cairn-next", "now"},
                                                              {"x-cairn-trace", "a b"},
                                                              {"x-cairn-trace", ""}}) {
    const auto responder = Chat(kChatBody, {header});
    EXPECT_EQ(responder->head->status, 400);
    EXPECT_EQ(responder->json()["error"]["param"], header.name);
  }
  EXPECT_EQ(router_.waiting(), 0u);
}

constexpr char kSampled[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
constexpr char kUnsampled[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
constexpr char kOther[] = "00-4bf92f3577b34da6a3ce929d0e0e4737-00f067aa0ba902b7-01";

TEST_F(ApiServiceTest, ATraceThatIsWantedWinsOverAWordForLogs) {
  const struct {
    std::vector<http::Header> headers;
    std::string trace, word;
  } cases[] = {
      {{{"traceparent", kSampled}}, kSampled, ""},
      {{{"traceparent", kUnsampled}}, kUnsampled, ""},
      {{{"x-cairn-trace", "abc"}, {"traceparent", kSampled}}, kSampled, "abc"},
      {{{"x-cairn-trace", "abc"}, {"traceparent", kUnsampled}}, "abc", ""},
      {{{"x-cairn-trace", "abc"}, {"traceparent", "nonsense"}}, "abc", ""},
      // W3C's Trace Context: nobody can tell which one is right.
      {{{"traceparent", kSampled}, {"Traceparent", kOther}}, "", ""},
      {{{"traceparent", kSampled}, {"traceparent", kSampled}}, "", ""},
      {{{"x-cairn-trace", "abc"}, {"traceparent", kSampled}, {"traceparent", kOther}}, "abc", ""},
  };
  for (const auto& each : cases) {
    Chat(kChatBody, each.headers);
    const RequestNames names = router_.Take().request.names;
    EXPECT_EQ(names.trace, each.trace);
    EXPECT_EQ(names.word, each.word);
    EXPECT_EQ(names.id, "chatcmpl-0000000000001234");
  }
  const auto twice = Chat(kChatBody, {{"x-cairn-trace", "a"}, {"x-cairn-trace", "b"}});
  EXPECT_EQ(twice->head->status, 400);
}

// Spans of requests that the router never gets.
class TracedServiceTest : public ApiServiceTest {
 protected:
  TracedServiceTest() {
    options_.tracer = &tracer_;
    Make();
  }
  // The only span.
  tracing::Span Span() {
    EXPECT_EQ(spans_.size(), 1u);
    tracing::Span span = spans_.empty() ? tracing::Span() : spans_.front();
    spans_.clear();
    return span;
  }
  static tracing::AttributeValue Value(const tracing::Span& span, const std::string& name) {
    for (const auto& [key, value] : span.attributes) {
      if (key == name) return value;
    }
    return "(none)";
  }

  std::vector<tracing::Span> spans_;
  tracing::Tracer tracer_{1, 1, [this](tracing::Span span) { spans_.push_back(std::move(span)); }};
};

TEST_F(TracedServiceTest, ARequestThatIsRefusedHasASpanWithItsError) {
  for (const std::string body : {"{", R"({"messages":[{"role":"user","content":"a"}],"n":2})"}) {
    const auto responder =
        Chat(body, {{"traceparent", kSampled}, {"x-request-id", "mine"}, {"x-cairn-trace", "abc"}});
    EXPECT_EQ(responder->head->status, 400);
    const tracing::Span span = Span();
    EXPECT_EQ(span.name, "route");
    EXPECT_EQ(tracing::Hex(span.place.own.trace), "4bf92f3577b34da6a3ce929d0e0e4736");
    EXPECT_FALSE(span.error.empty());
    EXPECT_EQ(Value(span, "http.response.status_code"), tracing::AttributeValue(int64_t{400}));
    EXPECT_EQ(Value(span, "request_id"), tracing::AttributeValue("chatcmpl-0000000000001234"));
    EXPECT_EQ(Value(span, "caller_request_id"), tracing::AttributeValue("mine"));
    EXPECT_EQ(Value(span, "trace_word"), tracing::AttributeValue("abc"));
    EXPECT_EQ(responder->Header("x-request-id"), "chatcmpl-0000000000001234");
  }
  // Who asks for the wrong thing gets one; who may not ask gets none.
  EXPECT_EQ(Chat(kChatBody, {{"content-type", "text/plain"}})->head->status, 415);
  EXPECT_FALSE(Span().error.empty());
  options_.tenant_header = "x-tenant";
  Make();
  EXPECT_EQ(Chat("{")->head->status, 401);
  EXPECT_TRUE(spans_.empty());
}

TEST_F(ApiServiceTest, ARequestThatFailsHasALineWithItsNames) {
  const auto fail = [this](StatusCode code, std::vector<http::Header> headers) {
    testing::CapturedLog log;
    Chat(kChatBody, std::move(headers));
    GenerateError error;
    error.status = Errorf(code, "some reason");
    router_.Take().observer->OnError(error);
    return log.Take();
  };
  const std::string line =
      fail(StatusCode::kUnavailable, {{"x-request-id", "mine"}, {"x-cairn-trace", "abc"}});
  for (const char* said :
       {"warning http_failed", "route=chat", "status=503", "trace=abc",
        "request=chatcmpl-0000000000001234", "caller_request=mine", "some reason"}) {
    EXPECT_THAT(line, HasSubstr(said));
  }
  EXPECT_THAT(fail(StatusCode::kInternal, {}), HasSubstr("warning http_failed"));
  // The caller's own mistake, and a caller that left, are nobody's to repair.
  EXPECT_EQ(fail(StatusCode::kInvalidArgument, {}), "");
  EXPECT_EQ(fail(StatusCode::kCancelled, {{"x-cairn-trace", "abc"}}), "");
  EXPECT_THAT(fail(StatusCode::kInvalidArgument, {{"x-cairn-trace", "abc"}}),
              HasSubstr("info http_failed"));
}

TEST_F(ApiServiceTest, AStreamThatBreaksHasALine) {
  testing::CapturedLog log;
  Chat(Streamed());
  const auto running = router_.Take();
  running.observer->OnToken(1, "a");
  GenerateError error;
  error.status = Errorf(StatusCode::kUnavailable, "the worker went");
  EXPECT_EQ(running.observer->HttpStatus(&error), 200) << "its head has left";
  running.observer->OnError(error);
  EXPECT_THAT(log.Take(), AllOf(HasSubstr("http_failed"), HasSubstr("the worker went")));
}

TEST_F(ApiServiceTest, ABodyThatFindsNoRoomHasALine) {
  testing::CapturedLog log;
  const http::Response response = service_->Refuse(503, "no room");
  EXPECT_THAT(log.Take(), AllOf(HasSubstr("http_failed"), HasSubstr("no room"),
                                HasSubstr("request=req-0000000000001234")));
  EXPECT_TRUE(std::ranges::any_of(response.headers, [](const http::Header& header) {
    return header.name == "x-request-id" && header.value == "req-0000000000001234";
  }));
}

TEST_F(ApiServiceTest, ARequestCountsWhatItsPromptTakes) {
  const auto budget = std::make_shared<FairBudget>(1 << 20);
  const auto ask = [&](const std::string& body) {
    auto responder = std::make_shared<FakeResponder>();
    auto charged = ChargedString::Charge(ByteShare(budget), body);
    EXPECT_TRUE(charged.ok());
    service_->Handle({.method = "POST",
                      .path = "/v1/completions",
                      .query = "",
                      .headers = {},
                      .body = *std::move(charged)},
                     responder);
    return responder;
  };
  // Text that nobody reads does not stay.
  ask(R"({"prompt":"four","user":")" + std::string(100'000, 'u') + R"("})");
  EXPECT_EQ(budget->used(), 4u);
  router_.Take();
  EXPECT_EQ(budget->used(), 0u);
  ask("{");
  EXPECT_EQ(budget->used(), 0u);
  EXPECT_EQ(service_->Refuse(503, "full").headers.size(), 2u);
}

TEST_F(ApiServiceTest, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(Ask("GET", "/nowhere")->head->status, 404);
  EXPECT_EQ(Ask("GET", "/v1/modelsx")->head->status, 404);
  const auto get = Ask("GET", "/v1/completions");
  EXPECT_EQ(get->head->status, 405);
  EXPECT_EQ(get->Header("Allow"), "POST");
  EXPECT_EQ(Ask("POST", "/v1/models")->head->status, 405);
  EXPECT_EQ(Chat(kChatBody, {{"Content-Type", "text/plain"}})->head->status, 415);
  EXPECT_EQ(Chat("{")->head->status, 400);
  Chat(kChatBody, {{"Content-Type", "Application/JSON; charset=utf-8"}});
  EXPECT_EQ(router_.waiting(), 1u);
}

TEST_F(ApiServiceTest, ListsModels) {
  router_.models = {{.id = "org/a", .context_tokens = 5, .workers = 1}, {.id = "b"}};
  const Json list = Ask("GET", "/v1/models")->json();
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["id"], "org/a");
  EXPECT_EQ(list["data"][1]["id"], "b");
  EXPECT_EQ(Ask("GET", "/v1/models/org/a")->json()["id"], "org/a");
  EXPECT_EQ(Ask("GET", "/v1/models/org%2Fa")->json()["max_model_len"], 5);
  for (const char* const id : {"c", "%", "%zz", "org%2", ""}) {
    const auto none = Ask("GET", std::string("/v1/models/") + id);
    EXPECT_EQ(none->head->status, 404) << id;
    EXPECT_EQ(none->json()["error"]["code"], "model_not_found");
  }
}

TEST_F(ApiServiceTest, HealthSaysWhetherAWorkerCanAnswer) {
  EXPECT_EQ(Ask("GET", "/health")->head->status, 200);
  router_.models.front().workers = 0;
  const auto away = Ask("GET", "/health");
  EXPECT_EQ(away->head->status, 503);
  EXPECT_EQ(away->json()["error"]["message"],
            "no worker can answer; /readyz at admin.listen says why");
  router_.models.front().workers = 1;
  service_->StartDrain();
  EXPECT_EQ(Ask("GET", "/health")->head->status, 503);
}

TEST_F(ApiServiceTest, AnswersWhoHoldsAPrompt) {
  router_.on_holders = [](const HoldersQuery& query) {
    EXPECT_EQ(query.block_tokens, 16u);
    return std::vector<PromptHolder>{{.id = "w:1", .tokens = 16, .host_tokens = 16}};
  };
  const auto found = Ask("POST", "/query", R"({"token_ids":[1],"block_size":16})");
  EXPECT_EQ(found->head->status, 200);
  EXPECT_EQ(found->json()["default"]["w:1"]["longest_matched"], 16);
  const auto wrong = Ask("POST", "/query_by_hash", R"({"seq_hashes":[1],"block_size":16})");
  EXPECT_EQ(wrong->head->status, 400);
  EXPECT_EQ(wrong->json()["error"]["code"], "unsupported_hash");
  EXPECT_EQ(Ask("GET", "/query")->Header("Allow"), "POST");
  EXPECT_EQ(Ask("POST", "/query", "{}", {{"Content-Type", "text/plain"}})->head->status, 415);
  EXPECT_EQ(Answers(Route::kQuery, 200), 1u);
  const std::string path = ::testing::TempDir() + "cairn_query_keys." + std::to_string(getpid());
  std::ofstream(path) << "batch " << Sha256::Of("secret").Hex() << "\n";
  FakeClock clock;
  auto keys = ApiKeyFile::Open(path, "http.api_keys", &clock);
  ASSERT_TRUE(keys.ok()) << keys.status();
  options_.keys = keys->get();
  Make();
  EXPECT_EQ(Ask("POST", "/query", R"({"token_ids":[1],"block_size":16})")->head->status, 401);
  const auto keyed = Ask("POST", "/query", R"({"token_ids":[1],"block_size":16})",
                         {{"Authorization", "Bearer secret"}});
  EXPECT_TRUE(keyed->json().contains("batch"));
}

TEST_F(ApiServiceTest, TheKeySaysWhoseTheRequestIs) {
  const std::string path = ::testing::TempDir() + "cairn_service_keys." + std::to_string(getpid());
  std::ofstream(path) << "batch " << Sha256::Of("secret").Hex() << "\n";
  FakeClock clock;
  auto keys = ApiKeyFile::Open(path, "http.api_keys", &clock);
  ASSERT_TRUE(keys.ok()) << keys.status();
  options_.keys = keys->get();
  Make();
  Chat(kChatBody, {{"Authorization", "bearer secret"}});
  EXPECT_EQ(router_.Take().request.tenant, "batch");
  for (const std::vector<http::Header>& headers :
       std::vector<std::vector<http::Header>>{{},
                                              {{"Authorization", "Bearer other"}},
                                              {{"Authorization", "Basic secret"}},
                                              {{"Authorization", "Bearer "}},
                                              {{"x-tenant", "batch"}}}) {
    const auto responder = Chat(kChatBody, headers);
    EXPECT_EQ(responder->head->status, 401);
    EXPECT_EQ(responder->json()["error"]["type"], "authentication_error");
    EXPECT_EQ(Ask("GET", "/v1/models", "", headers)->head->status, 401);
  }
  EXPECT_EQ(Ask("GET", "/health")->head->status, 200);  // Load balancers have no key.
}

TEST_F(ApiServiceTest, AHeaderNamesTheTenantOnlyWhereASettingSaysSo) {
  Chat(kChatBody, {{"x-tenant", "chat"}});
  EXPECT_EQ(router_.Take().request.tenant, "");
  options_.tenant_header = "x-tenant";
  Make();
  Chat(kChatBody, {{"X-Tenant", "chat"}});
  EXPECT_EQ(router_.Take().request.tenant, "chat");
  EXPECT_EQ(Chat()->head->status, 401);
  EXPECT_EQ(Chat(kChatBody, {{"x-tenant", "a b"}})->head->status, 401);
}

TEST(HttpConfigTest, SettingsThatContradictEachOtherAreRefused) {
  const auto check = [](const std::string& name, const std::string& value) {
    HttpConfig config;
    config::Schema schema("cairn-router", "Routes.");
    Register(schema, config);
    config.api_keys = "keys";
    EXPECT_TRUE(schema.Set(name, value, "flag").ok());
    return Message(schema.RunChecks());
  };
  EXPECT_EQ(check("http.threads", "3"), "");
  EXPECT_THAT(check("http.tenant_header", "x-tenant"), HasSubstr("http.tenant_header"));
  EXPECT_THAT(check("http.max_body", "512MiB"), HasSubstr("http.all_bodies"));
}

// Before engines.
class RelayServiceTest : public ApiServiceTest {
 protected:
  RelayServiceTest() {
    options_.relay = true;
    Make();
  }
};

TEST_F(RelayServiceTest, ACallAndItsWholeAnswerPassAsTheyAre) {
  const std::string body = R"({ "messages":[{"role":"user","content":"hi"}], "logprobs":true})";
  const auto responder = Chat(
      body,
      {{"Authorization", "Bearer secret"}, {"X-Request-Id", "mine"}, {"x-cairn-priority", "3"}});
  const auto running = router_.Take();
  ASSERT_NE(running.request.raw, nullptr);
  EXPECT_EQ(*running.request.raw->body, body);
  EXPECT_EQ(running.request.priority, 3);
  ASSERT_EQ(running.request.raw->headers.size(), 2u);  // Not who calls.
  EXPECT_EQ(running.request.raw->headers[0].value, "mine");
  running.observer->OnRawHead(
      {.status = 422, .content_type = "application/x", .headers = {{"x-request-id", "theirs"}}});
  running.observer->OnRawBytes("{ }");
  EXPECT_FALSE(responder->ended);
  running.observer->OnDone({});
  EXPECT_TRUE(responder->ended);
  EXPECT_EQ(responder->head->status, 422);
  EXPECT_EQ(responder->head->content_type, "application/x");
  EXPECT_EQ(responder->Header("x-request-id"), "theirs");
  EXPECT_EQ(responder->body, "{ }");
  EXPECT_EQ(Answers(Route::kChat, 422), 1u);
}

TEST_F(RelayServiceTest, AStreamPassesAndEndsWithAnErrorIfItBreaks) {
  const auto responder = Chat(Streamed());
  const auto running = router_.Take();
  running.observer->OnRawHead({.content_type = "text/event-stream", .stream = true});
  running.observer->OnRawBytes("data: {\"a\":1}\n\n");
  EXPECT_EQ(service_->GetStats().open_streams, 1u);
  EXPECT_EQ(responder->Header("x-request-id"), "chatcmpl-0000000000001234");
  GenerateError error;
  error.status = Errorf(StatusCode::kUnavailable, "gone");
  running.observer->OnError(error);
  const std::vector<Json> events = responder->events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0], Json::parse("{\"a\":1}"));
  EXPECT_EQ(events[1]["error"]["message"], "gone");
  EXPECT_EQ(service_->GetStats().failed_streams, 1u);
  EXPECT_EQ(service_->GetStats().open_streams, 0u);
}

TEST_F(RelayServiceTest, AnEnginesFailureHasALineAndAStatus) {
  testing::CapturedLog log;
  Chat(kChatBody, {{"x-request-id", "mine"}});
  const auto running = router_.Take();
  GenerateError error;
  error.status = Errorf(StatusCode::kUnavailable, "gone");
  EXPECT_EQ(running.observer->HttpStatus(&error), 503);
  running.observer->OnRawHead({.status = 500});
  EXPECT_EQ(running.observer->HttpStatus(nullptr), 500);
  running.observer->OnDone({});
  EXPECT_THAT(log.Take(), AllOf(HasSubstr("warning http_failed"), HasSubstr("caller_request=mine"),
                                HasSubstr("the engine answered with HTTP status 500")));
}

TEST_F(RelayServiceTest, AnEngineGetsNoneOfTwoTraces) {
  Chat(kChatBody, {{"traceparent", kSampled}, {"traceparent", kOther}});
  EXPECT_TRUE(router_.Take().request.raw->headers.empty());
  Chat(kChatBody, {{"traceparent", kSampled}});
  EXPECT_EQ(router_.Take().request.raw->headers.size(), 1u);
}

TEST_F(RelayServiceTest, WithoutAnEngineTheErrorIsTheRouters) {
  const auto responder = Chat();
  GenerateError error;
  error.status = Errorf(StatusCode::kResourceExhausted, "shed");
  error.retry_after = std::chrono::seconds(3);
  router_.Take().observer->OnError(error);
  EXPECT_EQ(responder->head->status, 429);
  EXPECT_EQ(responder->Header("Retry-After"), "3");
}

TEST_F(RelayServiceTest, WhatIsNoRequestStaysHere) {
  EXPECT_EQ(Chat("{")->head->status, 400);
  EXPECT_EQ(Chat("{\"messages\":1}")->json()["error"]["param"], "messages");
  EXPECT_EQ(router_.waiting(), 0u);
}

TEST_F(RelayServiceTest, ModelsAreWhatEnginesSayOfThem) {
  router_.models = {{.id = "m", .workers = 1, .object = R"({"id":"m","root":"r"})"}};
  const Json list = Ask("GET", "/v1/models")->json();
  EXPECT_EQ(list["data"][0], Json::parse(R"({"id":"m","root":"r"})"));
  EXPECT_EQ(Ask("GET", "/v1/models/m")->json()["root"], "r");
}

}  // namespace
}  // namespace cairn::router
