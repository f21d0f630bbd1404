// The fate of answers of engines, good ones and bad ones.
#include "services/router/relay/answer_relay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/status/matchers.h"

namespace cairn::router {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::_;
using ::testing::HasSubstr;

constexpr char kEvents[] = "text/event-stream; charset=utf-8";

struct Got final : WorkerAnswerObserver {
  void OnToken(model::TokenId, std::string_view) override { ADD_FAILURE(); }
  void OnRawHead(const RawHead& got) override { head = got; }
  void OnRawBytes(std::string_view more, uint32_t more_tokens) override {
    bytes += more;
    tokens += more_tokens;
  }
  void OnRefused(const Status& status, const RawAnswer& answer) override {
    ++ends;
    error = status;
    refusal = answer;
  }
  void OnDone(const WorkerAnswer& answer) override {
    ++ends;
    done = answer;
  }
  void OnError(const Status& status) override {
    ++ends;
    error = status;
  }
  std::optional<RawHead> head;
  std::string bytes;
  uint32_t tokens = 0;
  std::optional<RawAnswer> refusal;
  std::optional<WorkerAnswer> done;
  Status error = OkStatus();
  int ends = 0;
};

class AnswerRelayTest : public ::testing::Test {
 protected:
  AnswerRelayTest() { Make(/*stream=*/true); }
  ~AnswerRelayTest() override {
    relay_.reset();
    // Whatever happened, nothing is left of it.
    EXPECT_TRUE(load_->Report().queued.empty());
    EXPECT_EQ(load_->Report().running_decodes, 0u);
  }
  void Make(bool stream) {
    WorkerRequest request;
    auto raw = std::make_shared<RawCall>();
    raw->stream = stream;
    request.raw = std::move(raw);
    request.prompt_tokens = 11;
    got_ = std::make_shared<Got>();
    relay_ = std::make_unique<AnswerRelay>(
        AnswerRelay::Bounds{.max_event_bytes = 1000, .max_answer_bytes = 1000, .answers = answers_},
        request, load_, got_);
  }
  void Head(int status, const std::string& type, bool framed = true) {
    http::ResponseHead head{.status = status, .headers = {{"Content-Type", type}}};
    if (framed) head.headers.push_back({"Transfer-Encoding", "chunked"});
    head.headers.push_back({"X-Request-Id", "theirs"});
    head.headers.push_back({"Server", "secret"});
    relay_->OnHead(head);
  }
  void Whole(int status, const std::string& body) {
    Head(status, "application/json");
    if (relay_->OnBody(body)) relay_->OnEnd();
  }
  FakeClock clock_;
  const std::shared_ptr<FairBudget> answers_ =
      std::make_shared<FairBudget>(3000, BudgetName{.item = "answers", .setting = "all_answers"});
  std::shared_ptr<EngineLoad> load_ = std::make_shared<EngineLoad>(&clock_);
  std::shared_ptr<Got> got_;
  std::unique_ptr<AnswerRelay> relay_;
};

TEST_F(AnswerRelayTest, EventsPassAsTheyCome) {
  Head(200, kEvents);
  EXPECT_TRUE(relay_->OnBody("data: {\"a\":1}\n\ndata: {\"b"));
  EXPECT_EQ(got_->bytes, "data: {\"a\":1}\n\n");
  EXPECT_EQ(got_->tokens, 1u);
  ASSERT_TRUE(got_->head);
  EXPECT_TRUE(got_->head->stream);
  ASSERT_EQ(got_->head->headers.size(), 1u);
  EXPECT_EQ(got_->head->headers[0].value, "theirs");
  EXPECT_TRUE(
      relay_->OnBody("\":2}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,"
                     "\"completion_tokens\":2,\"prompt_tokens_details\":"
                     "{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n"));
  relay_->OnEnd();
  EXPECT_EQ(got_->ends, 1);
  ASSERT_TRUE(got_->done);
  EXPECT_EQ(got_->done->prompt_tokens, 9u);
  EXPECT_EQ(got_->done->fetched_tokens, 4u);
  EXPECT_EQ(got_->done->completion_tokens, 2u);
  EXPECT_EQ(got_->tokens, 2u);
  EXPECT_THAT(got_->bytes, ::testing::EndsWith("data: [DONE]\n\n"));
}

TEST_F(AnswerRelayTest, WithoutUsageEventsCount) {
  Head(200, kEvents);
  relay_->OnBody("data: {}\n\ndata: {}\n\ndata: [DONE]\n\n");
  relay_->OnEnd();
  ASSERT_TRUE(got_->done);
  EXPECT_EQ(got_->done->prompt_tokens, 11u);
  EXPECT_EQ(got_->done->completion_tokens, 2u);
}

TEST_F(AnswerRelayTest, CommentsBeforeTheFirstEventLeaveTheWayToOtherEnginesOpen) {
  Head(200, kEvents);
  relay_->OnBody(": ping\n\n: ping\n\n");
  EXPECT_FALSE(got_->head);
  relay_->OnError(Errorf(StatusCode::kUnavailable, "gone"));
  EXPECT_THAT(got_->error, StatusIs(StatusCode::kUnavailable, _));
  EXPECT_FALSE(got_->head);
  Make(true);
  Head(200, kEvents);
  relay_->OnBody(": ping\n\n");
  relay_->OnBody("data: {}\n\n");
  EXPECT_EQ(got_->bytes, ": ping\n\ndata: {}\n\n");
}

TEST_F(AnswerRelayTest, AStreamThatBreaksIsAnError) {
  Head(200, kEvents);
  relay_->OnBody("data: {}\n\ndata: {");
  relay_->OnError(Errorf(StatusCode::kUnavailable, "the connection ended"));
  EXPECT_EQ(got_->bytes, "data: {}\n\n");
  EXPECT_THAT(got_->error, StatusIs(StatusCode::kUnavailable, _));
  EXPECT_EQ(got_->ends, 1);
}

TEST_F(AnswerRelayTest, AStreamWithoutALengthNeedsItsLastEvent) {
  Head(200, kEvents, /*framed=*/false);
  relay_->OnBody("data: {}\n\n");
  relay_->OnEnd();
  EXPECT_THAT(got_->error, StatusIs(StatusCode::kUnavailable, _));
  Make(true);
  Head(200, kEvents, /*framed=*/false);
  relay_->OnBody("data: {}\n\ndata: [DONE]\n\n");
  relay_->OnError(Errorf(StatusCode::kUnavailable, "reset"));
  EXPECT_TRUE(got_->done);
}

TEST_F(AnswerRelayTest, AnEmptyStreamIsAnError) {
  Head(200, kEvents);
  relay_->OnEnd();
  EXPECT_THAT(got_->error, StatusIs(StatusCode::kUnavailable, _));
  EXPECT_FALSE(got_->head);
}

TEST_F(AnswerRelayTest, AnEventWithoutEndIsAnError) {
  Head(200, kEvents);
  EXPECT_TRUE(relay_->OnBody("data: {}\n\ndata: "));
  EXPECT_FALSE(relay_->OnBody(std::string(1000, 'x')));
  EXPECT_THAT(Message(got_->error), HasSubstr("1000"));
  EXPECT_EQ(got_->ends, 1);
}

TEST_F(AnswerRelayTest, AWholeAnswerPassesAsItIs) {
  Make(false);
  const std::string body = R"({"x": [1],  "usage":{"prompt_tokens":3,"completion_tokens":2}})";
  Whole(200, body);
  ASSERT_TRUE(got_->head);
  EXPECT_FALSE(got_->head->stream);
  EXPECT_EQ(got_->bytes, body);
  ASSERT_TRUE(got_->done);
  EXPECT_EQ(got_->done->prompt_tokens, 3u);
}

TEST_F(AnswerRelayTest, AnAnswerThatIsNoJsonOrHasNoEndIsAnError) {
  Make(false);
  Whole(200, "<html>\n");
  EXPECT_THAT(got_->error, StatusIs(StatusCode::kUnavailable, _));
  EXPECT_THAT(Message(got_->error), HasSubstr("<html> "));
  EXPECT_FALSE(got_->head);
  Make(false);
  Head(200, "application/json");
  EXPECT_FALSE(relay_->OnBody(std::string(1001, ' ')));
  EXPECT_THAT(Message(got_->error), HasSubstr("1000 bytes"));
}

TEST_F(AnswerRelayTest, ErrorsOfTheCallerPass) {
  for (const int status : {400, 404, 422}) {
    Make(true);
    Whole(status, "{\"error\":{}}");
    ASSERT_TRUE(got_->head) << status;
    EXPECT_EQ(got_->head->status, status);
    EXPECT_EQ(got_->bytes, "{\"error\":{}}");
    ASSERT_TRUE(got_->done);
    EXPECT_EQ(got_->done->finish_reason, "error");
  }
}

TEST_F(AnswerRelayTest, AnotherEngineMayAnswerWhatThisOneRefuses) {
  for (const int status : {429, 500, 502, 503}) {
    Make(true);
    Whole(status, "busy");
    ASSERT_TRUE(got_->refusal) << status;
    EXPECT_EQ(got_->refusal->head.status, status);
    EXPECT_EQ(*got_->refusal->body, "busy");
    EXPECT_THAT(
        got_->error,
        StatusIs(status == 429 ? StatusCode::kResourceExhausted : StatusCode::kUnavailable, _));
    EXPECT_FALSE(got_->head);
  }
}

TEST_F(AnswerRelayTest, WholeAnswersOfAllEnginesHaveABound) {
  Make(false);
  Head(200, "application/json");
  EXPECT_TRUE(relay_->OnBody("{\"a\":\"" + std::string(800, 'x')));
  EXPECT_GE(answers_->used(), 800u);
  {
    ByteShare others(answers_);
    ASSERT_TRUE(others.Resize(2000));
    EXPECT_FALSE(relay_->OnBody(std::string(150, 'x')));
    EXPECT_THAT(got_->error,
                StatusIs(StatusCode::kUnavailable, HasSubstr("its answer: memory of answers: ")));
    EXPECT_THAT(Message(got_->error), HasSubstr("see all_answers"));
    EXPECT_EQ(answers_->refusals(), 1u);
  }
  relay_.reset();
  EXPECT_EQ(answers_->used(), 0u);
  // A refusal counts for as long as somebody may pass it on.
  Make(false);
  Whole(503, std::string(900, 'x'));
  relay_.reset();
  EXPECT_GE(answers_->used(), 900u);
  got_->refusal.reset();
  EXPECT_EQ(answers_->used(), 0u);
}

TEST_F(AnswerRelayTest, TheRoutersKeyIsNotTheCallersFault) {
  Whole(401, "{\"error\":{\"message\":\"key sk-123\"}}");
  EXPECT_THAT(got_->error, StatusIs(StatusCode::kUnavailable, _));
  EXPECT_THAT(Message(got_->error), HasSubstr("engines.api_key_file"));
  EXPECT_FALSE(got_->refusal);
}

TEST_F(AnswerRelayTest, SilenceIsAFailureOfTheEngine) {
  relay_->OnError(Errorf(StatusCode::kDeadlineExceeded, "it said nothing"));
  EXPECT_THAT(got_->error, StatusIs(StatusCode::kUnavailable, _));
}

}  // namespace
}  // namespace cairn::router
