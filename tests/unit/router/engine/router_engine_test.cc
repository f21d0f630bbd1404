#include "services/router/engine/router_engine.h"

#include <gtest/gtest.h>

#include "tests/unit/router/engine/engine_fixture.h"

namespace cairn::router {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr uint32_t kContext = 512;

// The answer that a caller got.
struct Got final : GenerateObserver {
  void OnToken(model::TokenId id, std::string_view text) override {
    ids.push_back(id);
    streamed += text;
  }
  void OnDone(const GenerateSummary& summary) override {
    ++ends;
    done = summary;
  }
  void OnError(const GenerateError& got) override {
    ++ends;
    error = got;
  }
  int HttpStatus(const GenerateError* failed) const override { return failed ? 400 : 200; }
  std::vector<model::TokenId> ids;
  std::string streamed;
  std::optional<GenerateSummary> done;
  std::optional<GenerateError> error;
  int ends = 0;
};

class RouterEngineTest : public EngineFixture {
 protected:
  void SetUp() override {
    LoadModel();
    MakeDispatcher({"a:1", "b:1"}, {.max_wait_seconds = 10});
    Make({});
  }
  void TearDown() override { EndAll(); }
  void Make(RouterEngine::Options options, RouterEngine::Observers observers = {}) {
    options.model_id = "small";
    options.aliases = {"tiny"};
    options.context_tokens = kContext;
    MakeEngine(options, nullptr, std::move(observers));
  }
  static WorkerInfo Info() {
    WorkerInfo info;
    info.block_tokens = 64;
    info.context_tokens = kContext;
    info.fingerprint = Sha256::Of("namespace");
    return info;
  }
  void ReachBoth() {
    workers_.Reach("a:1", Info());
    workers_.Reach("b:1", Info());
  }
  static GenerateRequest Tokens(size_t count, model::TokenId id = 30) {
    GenerateRequest request;
    request.prompt = std::vector<model::TokenId>(count, id);
    return request;
  }
  std::shared_ptr<Got> Send(GenerateRequest request) {
    auto got = std::make_shared<Got>();
    calls_.push_back(engine_->Generate(std::move(request), got));
    executor_.RunAll();
    return got;
  }
  Result<Pick> PickWorker(GenerateRequest request) {
    std::optional<Result<Pick>> got;
    engine_->PickWorker(std::move(request), [&got](Result<Pick> pick) { got = std::move(pick); });
    executor_.RunAll();
    return got ? *std::move(got) : Result<Pick>(InvalidArgument("it was not answered"));
  }
  // The worker that has the only open request, and that request.
  std::pair<std::string, FakeRequest*> Open() {
    std::pair<std::string, FakeRequest*> open;
    for (const char* address : {"a:1", "b:1"}) {
      for (FakeRequest& sent : workers_[address].requests) {
        if (sent.observer == nullptr) continue;
        EXPECT_EQ(open.second, nullptr) << "two are open";
        open = {address, &sent};
      }
    }
    return open;
  }
};

TEST_F(RouterEngineTest, HandsOnTokensAndSummaryOfTheWorker) {
  ReachBoth();
  GenerateRequest request = Tokens(5);
  request.max_tokens = 7;
  request.priority = 3;
  const auto got = Send(std::move(request));
  const auto [address, sent] = Open();
  ASSERT_NE(sent, nullptr);
  EXPECT_EQ(*sent->request.tokens, std::vector<model::TokenId>(5, 30));
  EXPECT_EQ(sent->request.max_tokens, 7u);
  EXPECT_EQ(sent->request.priority, 3);
  EXPECT_EQ(sent->request.tenant, "default");
  sent->observer->OnToken(9, "Hel");
  sent->observer->OnToken(10, "lo");
  EXPECT_EQ(got->streamed, "Hello");
  EXPECT_EQ(got->ends, 0);
  WorkerAnswer answer;
  answer.prompt_tokens = 5;
  answer.fetched_tokens = 2;
  answer.shared_tokens = 1;
  answer.completion_tokens = 2;
  answer.finish_reason = "stop";
  answer.text = "Hello!";
  Finish(sent, answer);
  ASSERT_TRUE(got->done);
  EXPECT_EQ(got->done->text_tail, "!");
  EXPECT_EQ(got->done->cached_tokens, 3u);
  EXPECT_EQ(got->done->shared_tokens, 1u);
  EXPECT_EQ(got->done->worker, address);
  EXPECT_EQ(got->ends, 1);
  EXPECT_EQ(engine_->numbers().completed, 1u);
  EXPECT_EQ(engine_->numbers().active, 0u);
}

TEST_F(RouterEngineTest, ASpanSaysWhatIsKnownAsNumbersAndNothingElse) {
  std::vector<tracing::Span> spans;
  tracing::Tracer tracer(1, 1, [&spans](tracing::Span span) { spans.push_back(std::move(span)); });
  tracer_ = &tracer;
  Make({});
  ReachBoth();
  const auto named = [](const tracing::Span& span) {
    return std::map<std::string, tracing::AttributeValue>(span.attributes.begin(),
                                                          span.attributes.end());
  };
  GenerateRequest request = Tokens(5);
  request.names = {.id = "cmpl-1", .caller_id = "mine", .word = "abc"};
  const auto got = Send(std::move(request));
  const auto [address, sent] = Open();
  ASSERT_NE(sent, nullptr);
  EXPECT_TRUE(tracing::ParseTraceParent(sent->request.trace).has_value());
  sent->observer->OnToken(9, "a");
  WorkerAnswer answer;
  answer.prompt_tokens = 5;
  answer.fetched_tokens = 2;
  answer.completion_tokens = 1;
  answer.finish_reason = "stop";
  Finish(sent, answer);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].error, "");
  EXPECT_EQ(named(spans[0]), (std::map<std::string, tracing::AttributeValue>{
                                 {"request_id", "cmpl-1"},
                                 {"caller_request_id", "mine"},
                                 {"trace_word", "abc"},
                                 {"http.response.status_code", int64_t{200}},
                                 {"worker", address},
                                 {"finish_reason", "stop"},
                                 {"attempts", int64_t{1}},
                                 {"generated_tokens", int64_t{1}},
                                 {"prompt_tokens", int64_t{5}},
                                 {"cached_tokens", int64_t{2}}}));
  // One that fails: its prompt was counted, and nothing was cached as far as anybody knows.
  Send(Tokens(6));
  Fail(Open().second, InvalidArgument("no"));
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_NE(spans[1].error, "");
  const auto failed = named(spans[1]);
  EXPECT_EQ(failed.at("prompt_tokens"), tracing::AttributeValue(int64_t{6}));
  EXPECT_EQ(failed.at("http.response.status_code"), tracing::AttributeValue(int64_t{400}));
  for (const char* unknown : {"cached_tokens", "prefill_worker", "request_id", "trace_word"}) {
    EXPECT_EQ(failed.count(unknown), 0u) << unknown;
  }
  EXPECT_TRUE(engine_->Drain(clock_.Now() + std::chrono::seconds(1)));
  calls_.clear();
  tracer_ = nullptr;
  Make({});
}

TEST_F(RouterEngineTest, TellsTheTimesOfARequest) {
  std::map<std::string, std::vector<double>> times;
  const auto noted = [&times](const char* what) {
    return [&times, what](double seconds) { times[what].push_back(seconds); };
  };
  Make({}, {.prepared = noted("prepared"),
            .first_token = noted("first"),
            .answered = noted("answered"),
            .token = noted("token")});
  ReachBoth();
  const auto answer = [this](size_t tokens, const char* reason) {
    Send(Tokens(5));
    FakeRequest* sent = Open().second;
    clock_.Advance(std::chrono::seconds(2));
    for (size_t i = 0; i < tokens; ++i) {
      sent->observer->OnToken(9, "a");
      clock_.Advance(std::chrono::seconds(1));
    }
    WorkerAnswer done;
    done.finish_reason = reason;
    Finish(sent, done);
  };
  answer(5, "stop");
  answer(1, "length");
  answer(0, "stop");
  answer(5, "cancelled");
  EXPECT_THAT(times["prepared"], SizeIs(4));
  EXPECT_THAT(times["first"], ElementsAre(2, 2, 2));
  EXPECT_THAT(times["answered"], ElementsAre(7, 3, 2));
  // Five seconds after the first of five tokens.
  EXPECT_THAT(times["token"], ElementsAre(1.25));
}

TEST_F(RouterEngineTest, GoesToAnotherWorkerUntilTheFirstToken) {
  ReachBoth();
  const auto got = Send(Tokens(5));
  const auto [first, sent] = Open();
  Fail(sent, Errorf(StatusCode::kUnavailable, "killed"));
  const auto [second, again] = Open();
  ASSERT_NE(again, nullptr);
  EXPECT_NE(first, second);
  EXPECT_EQ(got->ends, 0);
  EXPECT_EQ(engine_->numbers().tries_again, 1u);
  again->observer->OnToken(9, "a");
  Fail(again, Errorf(StatusCode::kUnavailable, "killed, too"));
  EXPECT_EQ(Open().second, nullptr);
  ASSERT_TRUE(got->error);
  EXPECT_EQ(got->error->status.code(), StatusCode::kUnavailable);
  EXPECT_NE(Message(got->error->status).find(second), std::string::npos);
  EXPECT_EQ(engine_->numbers().broken, 1u);
}

TEST_F(RouterEngineTest, GoesToAnotherWorkerWhenTheFirstOneIsNamedNoMore) {
  ReachBoth();
  const auto got = Send(Tokens(5));
  const auto [first, sent] = Open();
  const std::string other = first == "a:1" ? "b:1" : "a:1";
  registry_->SetAddresses({other});
  Fail(sent, Errorf(StatusCode::kUnavailable, "gone"));
  const auto [second, again] = Open();
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(second, other);
  EXPECT_EQ(got->ends, 0);
}

TEST_F(RouterEngineTest, EndsWhenAllWorkersHaveFailed) {
  ReachBoth();
  const auto got = Send(Tokens(5));
  Fail(Open().second, Errorf(StatusCode::kUnavailable, "killed"));
  Fail(Open().second, Errorf(StatusCode::kUnavailable, "killed"));
  ASSERT_TRUE(got->error);
  EXPECT_EQ(got->error->status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(got->error->retry_after);
  EXPECT_EQ(got->ends, 1);
}

TEST_F(RouterEngineTest, WorkersThatAreAllFullShedTheRequest) {
  ReachBoth();
  const auto got = Send(Tokens(5));
  Fail(Open().second, Errorf(StatusCode::kResourceExhausted, "queue full"));
  Fail(Open().second, Errorf(StatusCode::kResourceExhausted, "queue full"));
  ASSERT_TRUE(got->error);
  EXPECT_EQ(got->error->status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(got->error->retry_after);
  EXPECT_EQ(engine_->numbers().shed, 1u);
}

TEST_F(RouterEngineTest, WorkersVerdictOnTheRequestIsFinal) {
  ReachBoth();
  const auto got = Send(Tokens(5));
  Fail(Open().second, InvalidArgument("field 'seed': odd"));
  EXPECT_EQ(Open().second, nullptr);
  ASSERT_TRUE(got->error);
  EXPECT_EQ(got->error->status.code(), StatusCode::kInvalidArgument);
}

TEST_F(RouterEngineTest, SaysWhatItWaitsForWhileNoWorkerIsReady) {
  EXPECT_NE(engine_->Waiting().find("a:1"), std::string::npos);
  const auto got = Send(Tokens(5));
  ASSERT_TRUE(got->error);
  EXPECT_EQ(got->error->status.code(), StatusCode::kUnavailable);
  EXPECT_NE(Message(got->error->status).find("a:1"), std::string::npos);
  EXPECT_EQ(engine_->Models()[0].workers, 0u);
  workers_.Reach("b:1", Info());
  EXPECT_EQ(engine_->Waiting(), "");
  EXPECT_EQ(engine_->Models()[0].workers, 1u);
  Send(Tokens(5));
  EXPECT_EQ(Open().first, "b:1");
}

TEST_F(RouterEngineTest, ShedsWhatWouldWaitTooLong) {
  workers_.Reach("a:1", Info(), {.load = {.prefill_seconds = 100}});
  workers_.Reach("b:1", Info(), {.load = {.prefill_seconds = 100}});
  const auto got = Send(Tokens(5));
  ASSERT_TRUE(got->error);
  EXPECT_EQ(got->error->status.code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(got->error->retry_after);
  EXPECT_GE(*got->error->retry_after, seconds(1));
  EXPECT_EQ(engine_->numbers().shed, 1u);
}

TEST_F(RouterEngineTest, CancelReachesTheWorkerAndEndsTheAnswer) {
  ReachBoth();
  const auto got = Send(Tokens(5));
  FakeRequest* const sent = Open().second;
  calls_.back()->Cancel();
  EXPECT_TRUE(sent->call->cancelled);
  EXPECT_EQ(got->ends, 0);
  Fail(sent, Errorf(StatusCode::kCancelled, "cancelled"));
  EXPECT_EQ(Open().second, nullptr) << "it went to another worker";
  ASSERT_TRUE(got->error);
  EXPECT_EQ(got->error->status.code(), StatusCode::kCancelled);
  EXPECT_EQ(engine_->numbers().cancelled, 1u);
}

TEST_F(RouterEngineTest, CallerThatLetsGoBeforeTheRequestIsPreparedCostsNoWorker) {
  ReachBoth();
  auto got = std::make_shared<Got>();
  engine_->Generate(Tokens(5), got).reset();
  executor_.RunAll();
  EXPECT_EQ(Open().second, nullptr);
  ASSERT_TRUE(got->error);
  EXPECT_EQ(got->error->status.code(), StatusCode::kCancelled);
}

TEST_F(RouterEngineTest, WhatWasSentToAWorkerDrawsTheNextTurnThere) {
  ReachBoth();
  Send(Tokens(300));
  const auto [first, sent] = Open();
  Finish(sent, {.prompt_tokens = 300, .completion_tokens = 1, .finish_reason = "stop"});
  for (int i = 0; i < 5; ++i) {
    Send(Tokens(320));
    const auto [next, open] = Open();
    EXPECT_EQ(next, first);
    Finish(open, {.prompt_tokens = 320, .completion_tokens = 1, .finish_reason = "stop"});
  }
  const auto pick = PickWorker(Tokens(320));
  ASSERT_OK(pick);
  EXPECT_EQ(pick->worker, first);
  EXPECT_EQ(pick->prompt_tokens, 320u);
  ASSERT_EQ(pick->candidates.size(), 2u);
  for (const Candidate& candidate : pick->candidates) {
    EXPECT_EQ(candidate.held_tokens > 0, candidate.worker == first) << candidate.worker;
  }
}

TEST_F(RouterEngineTest, EventsOfTheWorkersNodeDrawRequestsThere) {
  Make({.exact_index = true});
  WorkerReport at_node;
  at_node.cache_node_id = "node-b";
  workers_.Reach("a:1", Info());
  workers_.Reach("b:1", Info(), at_node);
  const std::vector<model::TokenId> tokens(200, 30);
  const auto keys = BlockKeyChain(*Info().fingerprint).Keys(tokens, 64);
  client::MemberEvent event;
  event.node_id = "node-b";
  event.kind = client::MemberEvent::Kind::kSnapshotBegins;
  index_.Apply(event);
  for (size_t i = 0; i < keys.size(); ++i) {
    event.kind = client::MemberEvent::Kind::kEvent;
    event.event.kind = CacheEvent::Kind::kStored;
    event.event.fingerprint = *Info().fingerprint;
    event.event.key = keys[i];
    if (i > 0) event.event.parent = keys[i - 1];
    index_.Apply(event);
  }
  event.kind = client::MemberEvent::Kind::kSnapshotEnds;
  index_.Apply(event);
  const auto pick = PickWorker(Tokens(200));
  ASSERT_OK(pick);
  EXPECT_EQ(pick->worker, "b:1");
  EXPECT_EQ(pick->candidates[0].held_tokens, 0u);
  EXPECT_EQ(pick->candidates[1].held_tokens, 192u);
}

TEST_F(RouterEngineTest, ListsTheContextThatAWorkerHasRoomFor) {
  WorkerInfo small = Info();
  small.context_tokens = kContext / 2;
  EXPECT_EQ(engine_->Models()[0].context_tokens, kContext);
  workers_.Reach("a:1", small);
  for (const ServedModel& model : engine_->Models()) {
    EXPECT_EQ(model.context_tokens, small.context_tokens) << model.id;
  }
  workers_.Reach("b:1", Info());
  EXPECT_EQ(engine_->Models()[0].context_tokens, kContext);
}

TEST_F(RouterEngineTest, NamesTheFieldAtFault) {
  WorkerInfo small = Info();
  small.context_tokens = kContext / 2;
  workers_.Reach("a:1", small);
  workers_.Reach("b:1", small);
  const auto field = [&](GenerateRequest request) {
    const auto got = Send(std::move(request));
    return got->error ? got->error->field : "none";
  };
  GenerateRequest other = Tokens(5);
  other.model = "other";
  const auto got = Send(std::move(other));
  ASSERT_TRUE(got->error);
  EXPECT_EQ(got->error->status.code(), StatusCode::kNotFound);
  EXPECT_EQ(got->error->field, "model");
  EXPECT_EQ(field(Tokens(0)), "prompt");
  EXPECT_EQ(field(Tokens(kContext)), "prompt");
  EXPECT_TRUE(Send(Tokens(kContext))->error->prompt_too_long);
  EXPECT_FALSE(Send(Tokens(0))->error->prompt_too_long);
  EXPECT_EQ(field(Tokens(5, -1)), "prompt");
  GenerateRequest chat;
  chat.prompt = std::vector<model::ChatMessage>{};
  EXPECT_EQ(field(std::move(chat)), "messages");
  GenerateRequest endless = Tokens(5);
  endless.max_tokens = kContext + 1;
  EXPECT_EQ(field(std::move(endless)), "max_tokens");
  GenerateRequest newer = Tokens(5);
  newer.max_tokens = kContext + 1;
  newer.max_tokens_name = "max_completion_tokens";
  EXPECT_EQ(field(std::move(newer)), "max_completion_tokens");
  EXPECT_EQ(Open().second, nullptr);
  EXPECT_EQ(engine_->numbers().rejected, 9u);
  GenerateRequest alias = Tokens(5);
  alias.model = "tiny";
  alias.max_tokens = kContext;
  Send(std::move(alias));
  ASSERT_NE(Open().second, nullptr);
  EXPECT_EQ(Open().second->request.max_tokens, small.context_tokens);
}

TEST_F(RouterEngineTest, AShortPromptWaitsForAPieceOfALongOneAtMost) {
  Make({.piece_bytes = 16});
  ReachBoth();
  GenerateRequest text;
  text.prompt = std::string(400, 'q');
  auto slow = std::make_shared<Got>();
  calls_.push_back(engine_->Generate(std::move(text), slow));
  EXPECT_TRUE(executor_.RunOne());
  EXPECT_EQ(engine_->waiting_prompts().works, 1u);
  EXPECT_EQ(executor_.Pending(), 1u);
  auto got = std::make_shared<Got>();
  calls_.push_back(engine_->Generate(Tokens(5), got));
  EXPECT_TRUE(executor_.RunOne());
  ASSERT_NE(Open().second, nullptr) << "it waits for the long one";
  EXPECT_EQ(Open().second->request.tokens->size(), 5u);
  Finish(Open().second, {.completion_tokens = 1, .finish_reason = "stop"});
  EXPECT_EQ(engine_->waiting_prompts().works, 0u);
  EXPECT_NE(Open().second, nullptr);  // The long one has come through, too.
}

TEST_F(RouterEngineTest, AShortPromptWaitsForNoLongOneThatHasThreadsOfItsOwn) {
  ManualExecutor long_texts;
  long_texts_ = &long_texts;
  Make({.piece_bytes = 16});
  ReachBoth();
  GenerateRequest text;
  text.prompt = std::string(400, 'q');
  calls_.push_back(engine_->Generate(std::move(text), std::make_shared<Got>()));
  EXPECT_EQ(executor_.Pending(), 0u);
  calls_.push_back(engine_->Generate(Tokens(3), std::make_shared<Got>()));
  EXPECT_TRUE(executor_.RunOne());
  ASSERT_NE(Open().second, nullptr);
  EXPECT_EQ(Open().second->request.tokens->size(), 3u);
  Finish(Open().second, {.completion_tokens = 1, .finish_reason = "stop"});
  EXPECT_EQ(Open().second, nullptr);
  EXPECT_GT(long_texts.RunAll(), 20u);  // In pieces, with the decision after the last one.
  EXPECT_EQ(executor_.Pending(), 0u);
  EXPECT_NE(Open().second, nullptr);
}

TEST_F(RouterEngineTest, WhoGoesWhileItsTextWaitsCostsNoMoreWork) {
  Make({.piece_bytes = 16});
  ReachBoth();
  GenerateRequest text;
  text.prompt = std::string(400, 'q');
  auto got = std::make_shared<Got>();
  calls_.push_back(engine_->Generate(std::move(text), got));
  EXPECT_TRUE(executor_.RunOne());
  calls_.back()->Cancel();
  EXPECT_TRUE(executor_.RunOne());
  EXPECT_EQ(executor_.Pending(), 0u);
  ASSERT_TRUE(got->error);
  EXPECT_EQ(got->error->status.code(), StatusCode::kCancelled);
  EXPECT_EQ(engine_->numbers().cancelled, 1u);
}

TEST_F(RouterEngineTest, ATenantHasABoundForTextThatWaits) {
  Make({.piece_bytes = 16, .tenant_bytes = 500});
  ReachBoth();
  const auto send = [&](const char* tenant, size_t bytes) {
    GenerateRequest text;
    text.tenant = tenant;
    text.prompt = std::string(bytes, 'q');
    auto got = std::make_shared<Got>();
    calls_.push_back(engine_->Generate(std::move(text), got));
    return got;
  };
  send("greedy", 400);
  const auto refused = send("greedy", 200);
  ASSERT_TRUE(refused->error);
  EXPECT_EQ(refused->error->status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(refused->error->retry_after);
  EXPECT_NE(Message(refused->error->status).find("tenant 'greedy'"), std::string::npos);
  EXPECT_FALSE(send("other", 400)->error);
  EXPECT_FALSE(send("greedy", 10)->error);
  EXPECT_EQ(engine_->numbers().shed, 1u);
  executor_.RunAll();
}

TEST_F(RouterEngineTest, APromptGoesToAWorkerThatHasRoomForIt) {
  WorkerInfo small = Info();
  small.context_tokens = 100;
  workers_.Reach("a:1", small);
  const auto got = Send(Tokens(100));
  ASSERT_TRUE(got->error);
  EXPECT_TRUE(got->error->prompt_too_long);
  EXPECT_EQ(got->error->field, "prompt");
  workers_.Reach("b:1", Info());
  Send(Tokens(100));
  EXPECT_EQ(Open().first, "b:1");
}

TEST_F(RouterEngineTest, TakesNoMoreThanItMayAndNothingWhileItDrains) {
  ReachBoth();
  Make({.max_requests = 1});
  const auto first = Send(Tokens(5));
  const auto second = Send(Tokens(5));
  ASSERT_TRUE(second->error);
  EXPECT_EQ(second->error->status.code(), StatusCode::kResourceExhausted);
  Finish(Open().second, {.completion_tokens = 1, .finish_reason = "stop"});
  EXPECT_TRUE(first->done);
  EXPECT_TRUE(engine_->Drain(clock_.Now()));
  const auto third = Send(Tokens(5));
  ASSERT_TRUE(third->error);
  EXPECT_EQ(third->error->status.code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace cairn::router
