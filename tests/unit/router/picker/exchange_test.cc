#include "services/router/picker/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/fake_router.h"

namespace cairn::router {
namespace {

using ext_proc::ProcessingRequest;
using ext_proc::ProcessingResponse;
using ::testing::HasSubstr;

constexpr char kBody[] = R"({"prompt":"one two","max_tokens":4})";

// The calls that a pick's lease got.
struct Lease {
  int ended = 0;
  uint32_t generated = 0;
  bool completed = false;
};

class FakeLease final : public PickLease {
 public:
  explicit FakeLease(Lease* told) : told_(told) {}
  ~FakeLease() override { ++told_->ended; }
  void Generated(uint32_t tokens) override { told_->generated += tokens; }
  void Completed() override { told_->completed = true; }

 private:
  Lease* const told_;
};

class ExchangeTest : public ::testing::Test {
 protected:
  ExchangeTest() {
    router_.on_pick = [this](PickAsk ask) -> std::variant<FollowedPick, GenerateError> {
      asks_.push_back(std::move(ask));
      if (error_) return *error_;
      FollowedPick pick;
      pick.pick.worker = "http://10.0.0.1:80";
      pick.pick.candidates = {{.worker = "http://10.0.0.4:80", .cost = 9},
                              {.worker = "http://10.0.0.1:80", .cost = 1},
                              {.worker = "http://10.0.0.3:80", .usable = false, .cost = 0},
                              {.worker = "http://10.0.0.2:80", .cost = 2}};
      pick.lease = std::make_unique<FakeLease>(&lease_);
      return pick;
    };
    parts_ = {.router = &router_,
              .bodies = bodies_,
              .counters = &counters_,
              .clock = &clock_,
              .max_body_bytes = 4096,
              .max_endpoints = 2};
    Make();
  }
  void Make() { exchange_ = std::make_shared<Exchange>(parts_); }

  // A step whose replies have gone to the gateway.
  struct Sent {
    std::vector<ProcessingResponse> replies;
    bool over = false;
    Status status = OkStatus();
  };
  Exchange::Step Step(ProcessingRequest message) {
    std::optional<Exchange::Step> got;
    exchange_->Take(std::move(message), [&](Exchange::Step step) {
      if (step.over) exchange_->End();  // As the stream does at once.
      got = std::move(step);
    });
    if (got) return *std::move(got);
    ADD_FAILURE() << "no step";
    return {};
  }
  Sent Take(ProcessingRequest message) {
    Exchange::Step step = Step(std::move(message));
    Sent sent{.replies = {}, .over = step.over, .status = step.status};
    for (Reply& reply : step.replies) sent.replies.push_back(reply.Take());
    return sent;
  }
  static void Add(ext_proc::HttpHeaders& headers, const std::string& name,
                  const std::string& value) {
    headers.mutable_headers()->add_headers()->set_key(name);
    headers.mutable_headers()->mutable_headers()->rbegin()->set_raw_value(value);
  }
  static ProcessingRequest Head(std::optional<ext_proc::BodySendMode> mode,
                                const std::string& path = "/v1/completions", bool end = false,
                                const std::string& method = "POST") {
    ProcessingRequest message;
    ext_proc::HttpHeaders& headers = *message.mutable_request_headers();
    Add(headers, ":method", method);
    Add(headers, ":path", path);
    Add(headers, "content-type", "application/json");
    headers.set_end_of_stream(end);
    if (mode) message.mutable_protocol_config()->set_request_body_mode(*mode);
    return message;
  }
  static ProcessingRequest Body(const std::string& body, bool end = true) {
    ProcessingRequest message;
    message.mutable_request_body()->set_body(body);
    message.mutable_request_body()->set_end_of_stream(end);
    return message;
  }
  static ProcessingRequest AnswerHead(const std::string& type = "text/event-stream",
                                      const std::string& served = "") {
    ProcessingRequest message;
    Add(*message.mutable_response_headers(), ":status", "200");
    Add(*message.mutable_response_headers(), "content-type", type);
    if (!served.empty()) {
      (*(*message.mutable_metadata_context()->mutable_filter_metadata())["envoy.lb"]
            .mutable_fields())["x-gateway-destination-endpoint-served"]
          .set_string_value(served);
    }
    return message;
  }
  static ProcessingRequest AnswerBody(const std::string& body, bool end) {
    ProcessingRequest message;
    message.mutable_response_body()->set_body(body);
    message.mutable_response_body()->set_end_of_stream(end);
    return message;
  }
  // The endpoints that a reply's header names, which its metadata must name, too.
  static std::string Endpoints(const ext_proc::CommonResponse& response,
                               const ProcessingResponse& reply) {
    if (response.header_mutation().set_headers_size() == 0) return "none";
    const std::string value = response.header_mutation().set_headers(0).header().raw_value();
    EXPECT_EQ(value, reply.dynamic_metadata()
                         .fields()
                         .at("envoy.lb")
                         .struct_value()
                         .fields()
                         .at(kEndpointKey)
                         .string_value());
    return value;
  }
  int ErrorOf(const Sent& step) {
    EXPECT_TRUE(step.over);
    EXPECT_TRUE(step.status.ok());
    if (step.replies.size() != 1 || !step.replies[0].has_immediate_response()) return 0;
    const auto error = nlohmann::json::parse(step.replies[0].immediate_response().body());
    EXPECT_EQ(error["error"].size(), 4u);
    message_ = error["error"]["message"];
    return step.replies[0].immediate_response().status().code();
  }
  void PickNow() {
    Take(Head(ext_proc::BUFFERED));
    ASSERT_EQ(Take(Body(kBody)).replies.size(), 1u);
  }
  uint64_t Count(PickResult result) { return counters_.Get().results[static_cast<size_t>(result)]; }

  FakeRouter router_;
  FakeClock clock_;
  const std::shared_ptr<FairBudget> bodies_ = std::make_shared<FairBudget>(1 << 20);
  PickerCounters counters_;
  Lease lease_;
  std::optional<GenerateError> error_;
  std::vector<PickAsk> asks_;
  std::string message_;
  Exchange::Parts parts_;
  std::shared_ptr<Exchange> exchange_;
};

TEST_F(ExchangeTest, AWholeBodyIsAnsweredWithEndpoints) {
  const auto head = Take(Head(ext_proc::BUFFERED));
  ASSERT_EQ(head.replies.size(), 1u);
  EXPECT_TRUE(head.replies[0].has_request_headers());
  EXPECT_FALSE(head.replies[0].has_dynamic_metadata());
  const auto body = Take(Body(kBody));
  ASSERT_EQ(body.replies.size(), 1u);
  EXPECT_EQ(Endpoints(body.replies[0].request_body().response(), body.replies[0]),
            "10.0.0.1:80,10.0.0.2:80");
  ASSERT_EQ(asks_.size(), 1u);
  EXPECT_EQ(std::get<std::string>(asks_[0].request.prompt), "one two");
  EXPECT_EQ(asks_[0].request.max_tokens, 4u);
  EXPECT_TRUE(asks_[0].has_prompt);
  EXPECT_EQ(Count(PickResult::kPicked), 1u);
  asks_.clear();
  EXPECT_EQ(bodies_->used(), 0u);
}

TEST_F(ExchangeTest, PiecesGoBackBehindTheEndpoints) {
  for (const bool says_so : {true, false}) {  // Older gateways do not name the mode.
    Make();
    const std::string body = kBody;
    std::optional<ext_proc::BodySendMode> mode;
    if (says_so) mode = ext_proc::FULL_DUPLEX_STREAMED;
    EXPECT_TRUE(Take(Head(mode, "/prefix/v1/completions")).replies.empty());
    const size_t piece_bytes = body.size() / 2;
    EXPECT_TRUE(Take(Body(body.substr(0, piece_bytes), false)).replies.empty());
    EXPECT_GE(bodies_->used(), piece_bytes);
    const auto step = Take(Body(body.substr(piece_bytes)));
    ASSERT_EQ(step.replies.size(), 2u);
    EXPECT_EQ(Endpoints(step.replies[0].request_headers().response(), step.replies[0]),
              "10.0.0.1:80,10.0.0.2:80");
    const auto& piece =
        step.replies[1].request_body().response().body_mutation().streamed_response();
    EXPECT_EQ(piece.body(), body);
    EXPECT_TRUE(piece.end_of_stream());
    const auto& headers = step.replies[0].request_headers().response().header_mutation();
    ASSERT_EQ(headers.set_headers_size(), 2);
    EXPECT_EQ(headers.set_headers(1).header().key(), "content-length");
    EXPECT_EQ(headers.set_headers(1).header().raw_value(), std::to_string(body.size()));
    asks_.clear();
    EXPECT_EQ(bodies_->used(), 0u);
  }
}

TEST_F(ExchangeTest, PiecesCountUntilTheyHaveGoneToTheGateway) {
  parts_.relay = true;
  parts_.max_body_bytes = 1 << 20;
  Make();
  const std::string body = R"({"prompt":"x","user":")" + std::string(200'000, 'u') + R"("})";
  Step(Head(ext_proc::FULL_DUPLEX_STREAMED));
  Exchange::Step step = Step(Body(body));
  asks_.clear();
  ASSERT_EQ(step.replies.size(), 5u);
  // Once, however many pieces there are; and whether the exchange is still there or not.
  EXPECT_EQ(bodies_->used(), body.size());
  exchange_.reset();
  std::string sent;
  while (!step.replies.empty()) {
    EXPECT_EQ(bodies_->used(), body.size());
    sent += step.replies.front()
                .Take()
                .request_body()
                .response()
                .body_mutation()
                .streamed_response()
                .body();
    step.replies.pop_front();
  }
  EXPECT_TRUE(sent == body);
  EXPECT_EQ(bodies_->used(), 0u);
}

TEST_F(ExchangeTest, ABodyThatOnlyPassesCountsToo) {
  parts_.max_body_bytes = 1 << 20;
  Make();
  Step(Head(ext_proc::FULL_DUPLEX_STREAMED, "/v1/embeddings"));
  std::vector<Exchange::Step> waiting;
  waiting.push_back(Step(Body(std::string(300'000, 'x'), false)));
  EXPECT_EQ(bodies_->used(), 300'000u);
  waiting.push_back(Step(Body(std::string(300'000, 'x'), false)));
  EXPECT_EQ(ErrorOf(Take(Body(std::string(600'000, 'x'), false))), 503);
  waiting.clear();
  EXPECT_EQ(bodies_->used(), 0u);
}

TEST_F(ExchangeTest, TrailersMayEndTheBody) {
  Take(Head(ext_proc::FULL_DUPLEX_STREAMED));
  EXPECT_TRUE(Take(Body(kBody, false)).replies.empty());
  ProcessingRequest trailers;
  trailers.mutable_request_trailers();
  const auto step = Take(trailers);
  ASSERT_EQ(step.replies.size(), 3u);
  EXPECT_TRUE(step.replies[0].has_request_headers());
  EXPECT_FALSE(step.replies[1]
                   .request_body()
                   .response()
                   .body_mutation()
                   .streamed_response()
                   .end_of_stream());
  EXPECT_TRUE(step.replies[2].has_request_trailers());
}

TEST_F(ExchangeTest, WithoutAPromptTheHeadIsAnswered) {
  struct Case {
    const char* method;
    const char* path;
    bool end;
  };
  for (const Case& one : {Case{"GET", "/v1/models", true}, Case{"POST", "/v1/embeddings", false}}) {
    Make();
    const auto step = Take(Head(ext_proc::FULL_DUPLEX_STREAMED, one.path, one.end, one.method));
    ASSERT_EQ(step.replies.size(), 1u) << one.path;
    EXPECT_EQ(Endpoints(step.replies[0].request_headers().response(), step.replies[0]),
              "10.0.0.1:80,10.0.0.2:80");
    EXPECT_FALSE(asks_.back().has_prompt);
  }
  // Its body only passes.
  const auto body = Take(Body("abc"));
  ASSERT_EQ(body.replies.size(), 1u);
  EXPECT_EQ(body.replies[0].request_body().response().body_mutation().streamed_response().body(),
            "abc");
  EXPECT_EQ(asks_.size(), 2u);
  // Nor is there a prompt where the gateway sends no bodies.
  Make();
  EXPECT_EQ(Take(Head(ext_proc::NONE)).replies.size(), 1u);
  EXPECT_FALSE(asks_.back().has_prompt);
}

TEST_F(ExchangeTest, TheSubsetBoundsThePick) {
  ProcessingRequest head = Head(ext_proc::BUFFERED);
  (*(*head.mutable_metadata_context()->mutable_filter_metadata())["envoy.lb.subset_hint"]
        .mutable_fields())["x-gateway-destination-endpoint-subset"]
      .mutable_list_value()
      ->add_values()
      ->set_string_value("10.0.0.2:80");
  Take(head);
  Take(Body(kBody));
  ASSERT_TRUE(asks_.back().may);
  EXPECT_TRUE(asks_.back().may("http://10.0.0.2:80"));
  EXPECT_FALSE(asks_.back().may("http://10.0.0.1:80"));
  Make();
  PickNow();
  EXPECT_FALSE(asks_.back().may);
}

TEST_F(ExchangeTest, HeadersOfTheRequestCount) {
  ProcessingRequest head = Head(ext_proc::BUFFERED);
  Add(*head.mutable_request_headers(), "x-cairn-priority", "7");
  Take(head);
  Take(Body(kBody));
  EXPECT_EQ(asks_.back().request.priority, 7);
}

TEST_F(ExchangeTest, WhatIsWrongWithARequestIsAnAnswerToItsClient) {
  const auto wrong = [&](const std::string& body, const char* path = "/v1/completions") {
    Make();
    Take(Head(ext_proc::BUFFERED, path));
    return ErrorOf(Take(Body(body)));
  };
  EXPECT_EQ(wrong("{"), 400);
  EXPECT_THAT(message_, HasSubstr("not JSON"));
  EXPECT_EQ(wrong(""), 400);
  EXPECT_EQ(wrong(R"({"messages":7})", "/v1/chat/completions"), 400);
  EXPECT_EQ(wrong(std::string(5000, ' ')), 413);
  EXPECT_EQ(Count(PickResult::kRejected), 4u);
  EXPECT_TRUE(asks_.empty());
  EXPECT_EQ(bodies_->used(), 0u);
  const auto refused = [&](StatusCode code) {
    error_ = GenerateError{.status = Errorf(code, "no"),
                           .field = code == StatusCode::kNotFound ? "model" : "",
                           .retry_after = std::chrono::seconds(2)};
    return wrong(kBody);
  };
  EXPECT_EQ(refused(StatusCode::kResourceExhausted), 429);
  EXPECT_EQ(refused(StatusCode::kUnavailable), 503);
  EXPECT_EQ(refused(StatusCode::kNotFound), 404);
  EXPECT_EQ(refused(StatusCode::kInternal), 500);
  EXPECT_EQ(Count(PickResult::kShed), 1u);
  EXPECT_EQ(Count(PickResult::kUnavailable), 1u);
  EXPECT_EQ(Count(PickResult::kFailed), 1u);
}

TEST_F(ExchangeTest, BodiesOfAllRequestsHaveABound) {
  Take(Head(ext_proc::FULL_DUPLEX_STREAMED));
  const uint64_t others = (1 << 20) - 3000;
  ByteShare one(bodies_);
  ByteShare another(bodies_);
  ASSERT_TRUE(one.Resize(others / 2) && another.Resize(others / 2));
  Take(Body(std::string(1000, ' '), false));
  EXPECT_EQ(ErrorOf(Take(Body(std::string(2500, ' '), false))), 503);
  EXPECT_EQ(bodies_->used(), others);
}

TEST_F(ExchangeTest, AModeThatCannotWorkIsAnError) {
  for (const auto mode : {ext_proc::STREAMED, ext_proc::BUFFERED_PARTIAL, ext_proc::GRPC}) {
    Make();
    EXPECT_EQ(ErrorOf(Take(Head(mode))), 500);
    EXPECT_THAT(message_, HasSubstr(ext_proc::BodySendMode_Name(mode)));
    EXPECT_THAT(message_, HasSubstr("expected BUFFERED or FULL_DUPLEX_STREAMED"));
  }
}

TEST_F(ExchangeTest, TheEndOfTheAnswerEndsTheRequest) {
  PickNow();
  EXPECT_TRUE(Take(AnswerHead()).replies[0].has_response_headers());
  EXPECT_EQ(Take(AnswerBody("data: {}\n\ndata: {", false)).replies.size(), 1u);
  EXPECT_EQ(lease_.ended, 0);
  Take(AnswerBody("}\n\nda", false));
  const auto last = Take(AnswerBody("ta: [DONE]\n\n", true));
  EXPECT_TRUE(last.replies[0].has_response_body());
  EXPECT_FALSE(last.over);
  EXPECT_EQ(lease_.ended, 1);
  EXPECT_EQ(lease_.generated, 3u);
  EXPECT_TRUE(lease_.completed);
}

TEST_F(ExchangeTest, NothingIsKnownOfTheLengthOfOtherAnswers) {
  PickNow();
  Take(AnswerHead("application/json"));
  Take(AnswerBody("{}", true));
  EXPECT_EQ(lease_.ended, 1);
  EXPECT_FALSE(lease_.completed);
}

TEST_F(ExchangeTest, TheEndOfTheStreamEndsTheRequestToo) {
  PickNow();
  Take(AnswerHead());
  exchange_->End();
  EXPECT_EQ(lease_.ended, 1);
  EXPECT_FALSE(lease_.completed);
  exchange_->End();
  EXPECT_EQ(lease_.ended, 1);
}

TEST_F(ExchangeTest, APickThatComesAfterTheEndIsLetGo) {
  router_.on_pick = [this, pick = router_.on_pick](PickAsk ask) {
    exchange_->End();
    return pick(std::move(ask));
  };
  Take(Head(ext_proc::BUFFERED));
  Take(Body(kBody));
  EXPECT_EQ(lease_.ended, 1);
}

TEST_F(ExchangeTest, NothingIsPickedAfterTheEnd) {
  Take(Head(ext_proc::BUFFERED));
  exchange_->End();
  EXPECT_TRUE(Take(Body(kBody)).over);
  EXPECT_TRUE(asks_.empty());
}

TEST_F(ExchangeTest, AnAnswerFromElsewhereDoesNotBurdenThePickedOne) {
  PickNow();
  Take(AnswerHead("text/event-stream", "10.0.0.2:80"));
  EXPECT_EQ(lease_.ended, 1);
  EXPECT_EQ(counters_.Get().moved, 1u);
  Take(AnswerBody("data: {}\n\n", true));
  EXPECT_FALSE(lease_.completed);
  Make();
  PickNow();
  Take(AnswerHead("text/event-stream", "10.0.0.1:80"));
  EXPECT_EQ(lease_.ended, 1);
  EXPECT_EQ(counters_.Get().moved, 1u);
}

TEST_F(ExchangeTest, PiecesOfAnAnswerGoBackWhereTheGatewayWantsThem) {
  ProcessingRequest head = Head(ext_proc::FULL_DUPLEX_STREAMED);
  head.mutable_protocol_config()->set_response_body_mode(ext_proc::FULL_DUPLEX_STREAMED);
  Take(head);
  Take(Body(kBody));
  Take(AnswerHead());
  const auto step = Take(AnswerBody("data: x\n", true));
  const auto& piece =
      step.replies[0].response_body().response().body_mutation().streamed_response();
  EXPECT_EQ(piece.body(), "data: x\n");
  EXPECT_TRUE(piece.end_of_stream());
}

TEST_F(ExchangeTest, WhoBreaksTheProtocolLosesTheStream) {
  const auto broken = [&](ProcessingRequest message) {
    const auto step = Take(std::move(message));
    return step.over && step.replies.empty() && step.status.code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(broken(Body(kBody)));
  EXPECT_TRUE(broken(ProcessingRequest()));
  Take(Head(ext_proc::BUFFERED));
  EXPECT_TRUE(broken(Head(ext_proc::BUFFERED)));
}

TEST_F(ExchangeTest, WhoOnlyWatchesGetsNoAnswer) {
  ProcessingRequest head = Head(ext_proc::BUFFERED);
  head.set_observability_mode(true);
  const auto step = Take(head);
  EXPECT_TRUE(step.over && step.replies.empty() && step.status.ok());
  EXPECT_TRUE(asks_.empty());
}

TEST_F(ExchangeTest, BeforeEnginesARequestPassesAsItIs) {
  parts_.relay = true;
  const std::string body = R"({"prompt":"one","stream":true,"tools":[{"a":1}],"logprobs":3})";
  for (const auto mode : {ext_proc::NONE, ext_proc::STREAMED}) {
    Make();
    ProcessingRequest head = Head(ext_proc::FULL_DUPLEX_STREAMED);
    head.mutable_protocol_config()->set_response_body_mode(mode);
    Take(head);
    const auto step = Take(Body(body));
    ASSERT_EQ(step.replies.size(), 2u);
    EXPECT_EQ(step.replies[1].request_body().response().body_mutation().streamed_response().body(),
              body);
    ASSERT_NE(asks_.back().request.raw, nullptr);
    EXPECT_EQ(std::get<std::string>(asks_.back().request.prompt), "one");
    // Without the answer's pieces nobody knows when a token comes.
    EXPECT_EQ(asks_.back().sees_tokens, mode == ext_proc::STREAMED);
  }
  Make();
  Take(Head(ext_proc::BUFFERED));
  EXPECT_EQ(ErrorOf(Take(Body("{"))), 400);
}

}  // namespace
}  // namespace cairn::router
