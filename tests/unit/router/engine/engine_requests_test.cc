// Requests to engines with OpenAI's API: they pass as they came, and to another engine if one
// refuses or fails before it has answered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/memory/charged_string.h"
#include "tests/unit/router/engine/engine_fixture.h"

namespace cairn::router {
namespace {

using ::cairn::testing::StatusIs;
using std::chrono::seconds;
using ::testing::_;
using ::testing::HasSubstr;

constexpr char kA[] = "http://a:1";
constexpr char kB[] = "http://b:1";

struct Relayed final : GenerateObserver {
  void OnToken(model::TokenId, std::string_view) override { ADD_FAILURE(); }
  void OnRawHead(const RawHead& got) override { head = got; }
  void OnRawBytes(std::string_view more) override { bytes += more; }
  void OnDone(const GenerateSummary& summary) override {
    ++ends;
    done = summary;
  }
  void OnError(const GenerateError& got) override {
    ++ends;
    error = got;
  }
  std::optional<RawHead> head;
  std::string bytes;
  std::optional<GenerateSummary> done;
  std::optional<GenerateError> error;
  int ends = 0;
};

// Ids of a prompt are its tokens; text comes later, when the test says so.
class FakePrompts final : public EnginePrompts {
 public:
  std::optional<EnginePrompt> Read(const GenerateRequest& request,
                                   std::optional<std::vector<model::TokenId>> /*own*/,
                                   Later later) override {
    if (const auto* ids = std::get_if<std::vector<model::TokenId>>(&request.prompt)) {
      return EnginePrompt{*ids, MakeEngineNamespace(EngineKeys::kTokens, 16)};
    }
    laters.push_back(std::move(later));
    return std::nullopt;
  }
  bool at_once() const override { return is_at_once; }
  std::vector<Later> laters;
  bool is_at_once = false;
};

class EngineRequestsTest : public EngineFixture {
 protected:
  void SetUp() override {
    MakeDispatcher({kA, kB});
    MakeEngine(RouterEngine::Options(), &prompts_);
  }
  void TearDown() override { EndAll(); }
  static WorkerInfo Info(const std::string& more = "") {
    WorkerInfo info;
    info.engine = true;
    info.block_tokens = 16;
    info.models = {{.id = "m", .context_tokens = 100, .object = "{}"}};
    if (!more.empty()) info.models.push_back({.id = more, .context_tokens = 0, .object = "{}"});
    return info;
  }
  void ReachBoth() {
    workers_.Reach(kA, Info());
    workers_.Reach(kB, Info());
  }
  static GenerateRequest Call(size_t tokens = 64, model::TokenId id = 30) {
    GenerateRequest request;
    request.model = "m";
    request.prompt = std::vector<model::TokenId>(tokens, id);
    auto raw = std::make_shared<RawCall>();
    raw->path = "/v1/completions";
    raw->body = std::make_shared<const std::string>("{ }");
    raw->stream = true;
    request.raw = std::move(raw);
    return request;
  }
  std::shared_ptr<Relayed> Send(GenerateRequest request) {
    auto got = std::make_shared<Relayed>();
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
  // The engine with the only open request, and that request.
  std::pair<std::string, FakeRequest*> Open() {
    std::pair<std::string, FakeRequest*> open;
    for (const char* address : {kA, kB}) {
      for (FakeRequest& sent : workers_[address].requests) {
        if (sent.observer == nullptr) continue;
        EXPECT_EQ(open.second, nullptr) << "two are open";
        open = {address, &sent};
      }
    }
    return open;
  }
  void Refuse(int status, const std::string& body) {
    const auto code = status == 429 ? StatusCode::kResourceExhausted : StatusCode::kUnavailable;
    RawAnswer answer;
    answer.head.status = status;
    answer.body = std::make_shared<const std::string>(body);
    std::exchange(Open().second->observer, nullptr)
        ->OnRefused(Errorf(code, "it answered {}", status), answer);
    executor_.RunAll();
  }
  void Fail() {
    std::exchange(Open().second->observer, nullptr)
        ->OnError(Errorf(StatusCode::kUnavailable, "it died"));
    executor_.RunAll();
  }

  FakePrompts prompts_;
};

TEST_F(EngineRequestsTest, APromptThatIsThereAtOnceNeedsNoOtherThread) {
  ReachBoth();
  prompts_.is_at_once = true;
  const auto got = std::make_shared<Relayed>();
  calls_.push_back(engine_->Generate(Call(), got));
  EXPECT_NE(Open().second, nullptr);  // The executor has not run.
}

TEST_F(EngineRequestsTest, ACallAndItsAnswerPass) {
  ReachBoth();
  const auto got = Send(Call());
  const auto [worker, sent] = Open();
  ASSERT_NE(sent, nullptr);
  EXPECT_EQ(*sent->request.raw->body, "{ }");
  EXPECT_EQ(sent->request.prompt_tokens, 64u);
  EXPECT_EQ(sent->request.held_tokens, 0u);
  RawHead head;
  head.stream = true;
  sent->observer->OnRawHead(head);
  sent->observer->OnRawBytes("data: 1\n\n", 1);
  sent->observer->OnRawBytes("data: 2\n\n", 1);
  WorkerAnswer answer;
  answer.prompt_tokens = 60;
  answer.fetched_tokens = 16;
  answer.completion_tokens = 2;
  answer.finish_reason = "stop";
  std::exchange(sent->observer, nullptr)->OnDone(answer);
  EXPECT_EQ(got->bytes, "data: 1\n\ndata: 2\n\n");
  ASSERT_TRUE(got->done);
  EXPECT_EQ(got->done->worker, worker);
  const RouterEngine::Numbers numbers = engine_->numbers();
  EXPECT_EQ(numbers.completed, 1u);
  EXPECT_EQ(numbers.generated_tokens, 2u);
  EXPECT_EQ(numbers.prompt_tokens, 60u);
  EXPECT_EQ(numbers.cached_tokens, 16u);
}

TEST_F(EngineRequestsTest, APromptGoesWhereItsBeginningWent) {
  ReachBoth();
  Send(Call(64));
  const std::string first = Open().first;
  std::exchange(Open().second->observer, nullptr)->OnDone({});
  Send(Call(80));
  EXPECT_EQ(Open().first, first);
  EXPECT_EQ(Open().second->request.held_tokens, 64u);
}

TEST_F(EngineRequestsTest, EventsCountInsteadOfWhatWasSent) {
  WorkerReport report;
  report.cache_node_id = kA;
  workers_.Reach(kA, Info(), report);
  Send(Call(64));
  std::exchange(Open().second->observer, nullptr)->OnDone({});
  Send(Call(64));
  EXPECT_EQ(Open().second->request.held_tokens, 0u);
  std::exchange(Open().second->observer, nullptr)->OnDone({});
  const EngineNamespace space = MakeEngineNamespace(EngineKeys::kTokens, 16);
  const std::vector<model::TokenId> tokens(32, 30);
  client::MemberEvent event;
  event.node_id = kA;
  for (const BlockKey& key : BlockKeyChain(space.fingerprint).Keys(tokens, 16)) {
    event.event = {.fingerprint = space.fingerprint, .key = key};
    index_.Apply(event);
  }
  Send(Call(64));
  EXPECT_EQ(Open().second->request.held_tokens, 32u);
}

TEST_F(EngineRequestsTest, WhatAnotherEngineHoldsCannotBeFetched) {
  WorkerReport report;
  report.cache_node_id = kA;
  workers_.Reach(kA, Info(), report);
  report.cache_node_id = kB;
  workers_.Reach(kB, Info(), report);
  const EngineNamespace space = MakeEngineNamespace(EngineKeys::kTokens, 16);
  const std::vector<model::TokenId> tokens(32, 30);
  client::MemberEvent event;
  event.node_id = kA;
  for (const BlockKey& key : BlockKeyChain(space.fingerprint).Keys(tokens, 16)) {
    event.event = {.fingerprint = space.fingerprint, .key = key};
    index_.Apply(event);
  }
  const auto pick = PickWorker(Call(64));
  ASSERT_OK(pick);
  EXPECT_EQ(pick->worker, kA);
  ASSERT_EQ(pick->candidates.size(), 2u);
  EXPECT_EQ(pick->candidates[0].held_tokens, 32u);
  EXPECT_EQ(pick->candidates[1].held_tokens, 0u);
}

TEST_F(EngineRequestsTest, AnotherEngineAnswersWhatOneRefuses) {
  ReachBoth();
  const auto got = Send(Call());
  const std::string first = Open().first;
  Refuse(503, "first");
  EXPECT_EQ(got->ends, 0);
  EXPECT_NE(Open().first, first);
  Refuse(429, "{\"error\":{}}");
  // No other one is left: the caller sees the last answer.
  ASSERT_TRUE(got->done);
  ASSERT_TRUE(got->head);
  EXPECT_EQ(got->head->status, 429);
  EXPECT_EQ(got->bytes, "{\"error\":{}}");
  EXPECT_EQ(engine_->numbers().shed, 1u);
  EXPECT_EQ(engine_->numbers().tries_again, 1u);
}

TEST_F(EngineRequestsTest, AnEngineThatCannotBeReachedIsNoTry) {
  RouterEngine::Options options;
  options.max_tries = 1;
  MakeEngine(options, &prompts_);
  ReachBoth();
  const auto got = Send(Call());
  const std::string first = Open().first;
  std::exchange(Open().second->observer, nullptr)
      ->OnUnreached(Errorf(StatusCode::kUnavailable, "cannot connect"));
  executor_.RunAll();
  EXPECT_NE(Open().first, first);
  Fail();  // This one got the request, and is the only one that may.
  ASSERT_TRUE(got->error);
  EXPECT_EQ(got->error->status.code(), StatusCode::kUnavailable);
}

TEST_F(EngineRequestsTest, NobodyTriesAgainAfterTheFirstByte) {
  ReachBoth();
  const auto got = Send(Call());
  Open().second->observer->OnRawHead({});
  Fail();
  ASSERT_TRUE(got->error);
  EXPECT_THAT(Message(got->error->status), HasSubstr("middle"));
  EXPECT_EQ(engine_->numbers().broken, 1u);
}

TEST_F(EngineRequestsTest, TheCallersErrorsAreAnswers) {
  ReachBoth();
  const auto got = Send(Call());
  FakeRequest* const sent = Open().second;
  sent->observer->OnRawHead({.status = 400});
  sent->observer->OnRawBytes("no", 0);
  std::exchange(sent->observer, nullptr)->OnDone({});
  EXPECT_EQ(got->head->status, 400);
  EXPECT_EQ(engine_->numbers().rejected, 1u);
  EXPECT_EQ(engine_->numbers().completed, 0u);
}

TEST_F(EngineRequestsTest, AModelGoesWhereItIsServed) {
  workers_.Reach(kA, Info());
  workers_.Reach(kB, Info("lora"));
  const auto of = [](const char* model) {
    GenerateRequest call = Call();
    call.model = model;
    return call;
  };
  for (int i = 0; i < 4; ++i) {
    Send(of("lora"));
    EXPECT_EQ(Open().first, kB);
    std::exchange(Open().second->observer, nullptr)->OnDone({});
  }
  const auto got = Send(of("other"));
  ASSERT_TRUE(got->error);
  EXPECT_THAT(got->error->status, StatusIs(StatusCode::kNotFound, _));
  EXPECT_THAT(Message(got->error->status), HasSubstr("'lora', 'm'"));
  const std::vector<ServedModel> models = engine_->Models();
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[0].id, "m");
  EXPECT_EQ(models[0].workers, 2u);
  EXPECT_EQ(models[1].workers, 1u);
}

TEST_F(EngineRequestsTest, TokensMayComeLater) {
  ReachBoth();
  const auto text = [] {
    GenerateRequest call = Call();
    call.prompt = std::string("text");
    return call;
  };
  const auto got = Send(text());
  EXPECT_EQ(Open().second, nullptr);
  ASSERT_EQ(prompts_.laters.size(), 1u);
  prompts_.laters[0]({{1, 2, 3}, MakeEngineNamespace(EngineKeys::kText, 64)});
  executor_.RunAll();
  ASSERT_NE(Open().second, nullptr);
  EXPECT_EQ(Open().second->request.prompt_tokens, 3u);
  // Cancelled while its tokens are on their way.
  const auto cancelled = Send(text());
  calls_.back()->Cancel();
  prompts_.laters[1]({{1, 2, 3}, MakeEngineNamespace(EngineKeys::kText, 64)});
  executor_.RunAll();
  ASSERT_TRUE(cancelled->error);
  EXPECT_THAT(cancelled->error->status, StatusIs(StatusCode::kCancelled, _));
  prompts_.laters.clear();
}

// A real engine would refuse it after it has tokenised it, and until then everybody would wait.
TEST_F(EngineRequestsTest, APromptThatNoEngineCanTakeIsRefusedBeforeItCounts) {
  ReachBoth();  // Both have a context of 100 tokens.
  const auto refused = [&](GenerateRequest call) {
    const auto got = Send(std::move(call));
    EXPECT_EQ(Open().second, nullptr);
    return got->error && got->error->prompt_too_long ? Message(got->error->status) : "";
  };
  EXPECT_THAT(refused(Call(101)), HasSubstr("got 101 tokens, expected at most 100"));
  GenerateRequest text = Call();
  text.prompt = std::string(6401, 'x');
  EXPECT_THAT(refused(std::move(text)), HasSubstr("got 6401 bytes, expected at most 6400"));
  // The engine's count of its tokens is known later.
  GenerateRequest shorter = Call();
  shorter.prompt = std::string(400, 'x');
  const auto got = Send(std::move(shorter));
  prompts_.laters.at(0)(
      {std::vector<model::TokenId>(200, 7), MakeEngineNamespace(EngineKeys::kTokens, 16)});
  prompts_.laters.clear();
  executor_.RunAll();
  ASSERT_TRUE(got->error);
  EXPECT_TRUE(got->error->prompt_too_long);
  EXPECT_THAT(got->error->status, StatusIs(StatusCode::kInvalidArgument, _));
  EXPECT_EQ(engine_->numbers().rejected, 3u);
  for (const auto& worker : dispatcher_->numbers().workers) EXPECT_EQ(worker.picks, 0u);
}

TEST_F(EngineRequestsTest, TextCountsAsNoMoreThanAnEngineCanCompute) {
  ReachBoth();
  GenerateRequest call = Call();
  call.prompt = std::string(6000, ' ');
  Send(std::move(call));
  prompts_.laters.at(0)({.tokens = std::vector<model::TokenId>(1500, 7),
                         .space = MakeEngineNamespace(EngineKeys::kText, 64),
                         .exact = false});
  prompts_.laters.clear();
  executor_.RunAll();
  ASSERT_NE(Open().second, nullptr);
  EXPECT_EQ(Open().second->request.prompt_tokens, 100u);
}

// Images stand in the prompt as text that is much longer than what the engine makes of them.
TEST_F(EngineRequestsTest, TextThatStandsForAnImageIsNotTooLong) {
  ReachBoth();
  GenerateRequest call = Call();
  auto raw = std::make_shared<RawCall>(*call.raw);
  raw->plain = false;
  call.raw = std::move(raw);
  call.prompt = std::string(100'000, 'x');
  const auto got = Send(std::move(call));
  EXPECT_FALSE(got->error);
  prompts_.laters.at(0)({.tokens = std::vector<model::TokenId>(25'000, 7), .exact = false});
  prompts_.laters.clear();
  executor_.RunAll();
  EXPECT_NE(Open().second, nullptr);
}

TEST_F(EngineRequestsTest, ALongPromptGoesToTheEngineThatHasRoom) {
  WorkerInfo large = Info();
  large.models[0].context_tokens = 1000;
  workers_.Reach(kA, Info());
  workers_.Reach(kB, large);
  for (int i = 0; i < 3; ++i) {
    Send(Call(500));
    EXPECT_EQ(Open().first, kB);
    std::exchange(Open().second->observer, nullptr)->OnDone({});
  }
  const auto pick = PickWorker(Call(500));
  ASSERT_OK(pick);
  EXPECT_THAT(pick->candidates[0].reason, HasSubstr("context of 100 tokens"));
}

TEST_F(EngineRequestsTest, APickWaitsForTokensWithoutAThread) {
  ReachBoth();
  GenerateRequest call = Call();
  call.prompt = std::string("text");
  std::optional<Result<Pick>> got;
  engine_->PickWorker(std::move(call), [&got](Result<Pick> pick) { got = std::move(pick); });
  executor_.RunAll();  // It comes back: nothing waits in it.
  EXPECT_FALSE(got);
  prompts_.laters.at(0)({{1, 2, 3}, MakeEngineNamespace(EngineKeys::kText, 64)});
  prompts_.laters.clear();
  executor_.RunAll();
  ASSERT_TRUE(got);
  ASSERT_OK(*got);
  EXPECT_EQ((*got)->prompt_tokens, 3u);
}

// The edge has handed the body over and has forgotten it.
TEST_F(EngineRequestsTest, ARequestCountsUntilAnEngineBeginsToAnswer) {
  ReachBoth();
  const auto budget = std::make_shared<FairBudget>(1 << 20);
  const auto charged = [&budget] {
    GenerateRequest call = Call(/*tokens=*/64);
    auto raw = std::make_shared<RawCall>(*call.raw);
    auto body = ChargedString::Charge(ByteShare(budget), std::string(100'000, 'x'));
    raw->body = ChargedString::Shared(*std::move(body));
    call.raw = std::move(raw);
    call.share = ByteShare(budget);
    return call;
  };
  const auto answered = Send(charged());
  const uint64_t one = budget->used();
  EXPECT_GE(one, 100'000u + 64 * sizeof(model::TokenId));
  FakeRequest* sent = Open().second;
  // The link lets go of the request when it has sent it.
  sent->request = {};
  EXPECT_EQ(budget->used(), one);
  sent->observer->OnRawHead({});
  EXPECT_EQ(budget->used(), 0u);
  std::exchange(sent->observer, nullptr)->OnDone({});
  // One that fails counts no longer either, though its caller keeps the call.
  Send(charged());
  sent = Open().second;
  sent->request = {};
  std::exchange(sent->observer, nullptr)->OnError(InvalidArgument("wrong"));
  executor_.RunAll();
  EXPECT_EQ(budget->used(), 0u);
  // Tokens for which there is no room are refused, and nothing of the request stays.
  const auto refused = [&] {
    GenerateRequest call = Call();
    call.prompt = std::string("text");
    call.share = ByteShare(budget);
    return Send(std::move(call));
  }();
  EnginePrompt many = {.tokens = std::vector<model::TokenId>(1 << 18, 30), .exact = false};
  prompts_.laters.back()(std::move(many));
  prompts_.laters.clear();
  ASSERT_TRUE(refused->error);
  EXPECT_THAT(refused->error->status, StatusIs(StatusCode::kUnavailable, _));
  EXPECT_EQ(budget->used(), 0u);
}

TEST_F(EngineRequestsTest, OnlyRawCallsPass) {
  ReachBoth();
  GenerateRequest call = Call();
  call.raw.reset();
  const auto got = Send(std::move(call));
  ASSERT_TRUE(got->error);
  EXPECT_THAT(got->error->status, StatusIs(StatusCode::kUnimplemented, _));
}

TEST_F(EngineRequestsTest, WaitsForEnginesBeforeItKnowsWhatTheyServe) {
  const auto got = Send(Call());
  ASSERT_TRUE(got->error);
  EXPECT_THAT(got->error->status, StatusIs(StatusCode::kUnavailable, _));
  EXPECT_THAT(Message(got->error->status), HasSubstr(kA));
}

}  // namespace
}  // namespace cairn::router
