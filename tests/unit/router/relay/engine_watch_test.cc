#include "services/router/relay/engine_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/status/matchers.h"
#include "services/router/relay/engine_link.h"
#include "tests/unit/router/relay/fake_client.h"

namespace cairn::router {
namespace {

using ::cairn::testing::StatusIs;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::_;
using ::testing::HasSubstr;

constexpr char kModels[] =
    R"({"object":"list","data":[{"id":"m","max_model_len":4096,"owned_by":"x"},{"id":"lora"}]})";

struct Got final : WorkerWatchObserver {
  void OnInfo(const WorkerInfo& got) override { info = got; }
  void OnReport(const WorkerReport& got) override {
    report = got;
    ++reports;
  }
  void OnEnd(const Status& status) override {
    end = status;
    ++ends;
  }
  std::optional<WorkerInfo> info;
  std::optional<WorkerReport> report;
  int reports = 0;
  Status end = OkStatus();
  int ends = 0;
};

class EngineWatchTest : public ::testing::Test {
 protected:
  EngineWatchTest() {
    EngineLinkOptions options;
    options.has_events = [](const std::string& address) { return address == "http://b:2"; };
    auto make = EngineLinks(options, &client_, nullptr, &clock_);
    link_ = make("http://a:1");
    followed_ = make("http://b:2");
  }
  void Begin(WorkerLink* link) { call_ = link->Watch(got_); }
  // Answers all questions.
  void Answer(int health, int models = 200, const std::string& body = kModels) {
    for (FakeClient::Sent* sent : client_.Open("/health")) sent->Answer(health, "");
    for (FakeClient::Sent* sent : client_.Open("/v1/models")) sent->Answer(models, body);
  }
  void Reach() {
    Begin(link_.get());
    Answer(200);
    client_.Pass(milliseconds(100));
    ASSERT_TRUE(got_->info);
  }
  FakeClock clock_;
  FakeClient client_{&clock_};
  std::unique_ptr<WorkerLink> link_, followed_;
  std::shared_ptr<Got> got_ = std::make_shared<Got>();
  std::shared_ptr<WorkerCall> call_;
};

TEST_F(EngineWatchTest, TellsWhatTheEngineServesAndThenItsLoad) {
  Reach();
  EXPECT_TRUE(got_->info->engine);
  EXPECT_EQ(got_->info->model, "m");
  EXPECT_EQ(got_->info->context_tokens, 4096u);
  ASSERT_EQ(got_->info->models.size(), 2u);
  EXPECT_EQ(got_->info->models[1].id, "lora");
  EXPECT_THAT(got_->info->models[0].object, HasSubstr("\"owned_by\":\"x\""));
  EXPECT_EQ(got_->reports, 1);
  EXPECT_EQ(got_->report->cache_node_id, "");
  client_.Pass(milliseconds(500));
  EXPECT_EQ(got_->reports, 6);
  EXPECT_EQ(client_.sent[0]->origin.Authority(), "a:1");
}

TEST_F(EngineWatchTest, OneWhoseEventsAreFollowedIsItsOwnHolder) {
  Begin(followed_.get());
  Answer(200);
  client_.Pass(milliseconds(100));
  ASSERT_TRUE(got_->report);
  EXPECT_EQ(got_->report->cache_node_id, "http://b:2");
}

TEST_F(EngineWatchTest, AsksEverySecondAndEndsAfterThreeFailures) {
  Reach();
  client_.Pass(milliseconds(950));
  ASSERT_EQ(client_.Open("/health").size(), 1u);
  // Slow answers are patience's matter, not reports'.
  const int reports = got_->reports;
  client_.Pass(milliseconds(300));
  EXPECT_GT(got_->reports, reports);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(got_->ends, 0) << i;
    ASSERT_EQ(client_.Open("/health").size(), 1u) << i;
    client_.Open("/health")[0]->Fail(Errorf(StatusCode::kUnavailable, "refused"));
    client_.Pass(milliseconds(100));
  }
  EXPECT_EQ(got_->ends, 1);
  EXPECT_THAT(got_->end, StatusIs(StatusCode::kUnavailable, _));
  client_.Pass(seconds(2));
  EXPECT_EQ(got_->ends, 1);
}

TEST_F(EngineWatchTest, OneFailureIsForgotten) {
  Reach();
  for (int i = 0; i < 10; ++i) {
    client_.Pass(milliseconds(100));
    for (FakeClient::Sent* sent : client_.Open("/health")) sent->Answer(i % 2 ? 200 : 503, "");
    Answer(200);
  }
  client_.Pass(seconds(1));
  EXPECT_EQ(got_->ends, 0);
}

TEST_F(EngineWatchTest, AnEngineThatIsNotWellNeverBecomesOne) {
  Begin(link_.get());
  Answer(503);
  client_.Pass(milliseconds(100));
  EXPECT_EQ(got_->ends, 1);
  EXPECT_THAT(Message(got_->end), HasSubstr("/health"));
  EXPECT_FALSE(got_->info);
}

TEST_F(EngineWatchTest, AnEngineWithoutHealthIsAskedForItsModels) {
  Begin(link_.get());
  Answer(404);
  client_.Pass(milliseconds(100));
  EXPECT_TRUE(got_->info);
  const size_t before = client_.sent.size();
  client_.Pass(milliseconds(900));
  ASSERT_EQ(client_.sent.size(), before + 1);
  EXPECT_EQ(client_.sent.back()->request.target, "/v1/models");
}

TEST_F(EngineWatchTest, AListThatIsNoneIsNoEngine) {
  for (const char* body : {"", "[]", "{}", "{\"data\":{}}", "<html>"}) {
    got_ = std::make_shared<Got>();
    Begin(link_.get());
    Answer(200, 200, body);
    client_.Pass(milliseconds(100));
    EXPECT_EQ(got_->ends, 1) << body;
    EXPECT_FALSE(got_->info) << body;
  }
}

TEST_F(EngineWatchTest, ModelsThatMakeNoSenseAreLeftOut) {
  Begin(link_.get());
  Answer(200, 200, R"({"data":[1,{"id":3},{"id":""},{"id":"m","max_model_len":-1}]})");
  client_.Pass(milliseconds(100));
  ASSERT_TRUE(got_->info);
  ASSERT_EQ(got_->info->models.size(), 1u);
  EXPECT_EQ(got_->info->context_tokens, 0u);
}

TEST_F(EngineWatchTest, AModelThatIsNestedDeeplyIsCutOff) {
  Begin(link_.get());
  const std::string deep = std::string(300'000, '[') + std::string(300'000, ']');
  Answer(200, 200, R"({"data":[{"id":"m","x":)" + deep + "}]}");
  client_.Pass(milliseconds(100));
  ASSERT_TRUE(got_->info);
  ASSERT_EQ(got_->info->models.size(), 1u);
  EXPECT_LT(got_->info->models[0].object.size(), 200u);
}

TEST_F(EngineWatchTest, AKeyThatIsRefusedIsNamed) {
  Begin(link_.get());
  Answer(200, 401, "");
  client_.Pass(milliseconds(100));
  EXPECT_THAT(Message(got_->end), HasSubstr("engines.api_key_file"));
}

TEST_F(EngineWatchTest, CancelEndsIt) {
  Reach();
  client_.Pass(milliseconds(950));
  FakeClient::Sent* const asked = client_.Open("/health")[0];
  call_->Cancel();
  EXPECT_TRUE(asked->call->cancelled);
  asked->Fail(Errorf(StatusCode::kCancelled, "cancelled"));
  client_.Pass(milliseconds(100));
  EXPECT_EQ(got_->ends, 1);
  EXPECT_THAT(got_->end, StatusIs(StatusCode::kCancelled, _));
}

struct Answered final : WorkerAnswerObserver {
  void OnToken(model::TokenId, std::string_view) override {}
  void OnDone(const WorkerAnswer&) override { done = true; }
  void OnError(const Status&) override {}
  bool done = false;
};

TEST_F(EngineWatchTest, ACallGoesThereAsItCameAndCountsAsLoad) {
  WorkerRequest request;
  auto raw = std::make_shared<RawCall>();
  raw->path = "/v1/completions";
  raw->body = std::make_shared<const std::string>("{ \"prompt\" : 1}");
  raw->headers = {{"x-request-id", "7"}};
  raw->stream = true;
  request.raw = raw;
  request.prompt_tokens = 100;
  const auto answered = std::make_shared<Answered>();
  const auto call = link_->Generate(request, answered);
  ASSERT_EQ(client_.Open("/v1/completions").size(), 1u);
  FakeClient::Sent* const sent = client_.Open("/v1/completions")[0];
  EXPECT_EQ(*sent->request.body, *raw->body);
  EXPECT_EQ(sent->request.method, "POST");
  EXPECT_EQ(sent->Header("X-Request-Id"), "7");
  EXPECT_EQ(sent->Header("Authorization"), "");
  EXPECT_EQ(sent->Header("Content-Type"), "application/json");
  Reach();
  ASSERT_EQ(got_->report->load.queued.size(), 1u);
  EXPECT_EQ(got_->report->load.queued[0].prefill_tokens, 100u);
  sent->Answer(200, "{}");
  EXPECT_TRUE(answered->done);
  client_.Pass(milliseconds(100));
  EXPECT_TRUE(got_->report->load.queued.empty());
  call->Cancel();
  EXPECT_TRUE(sent->call->cancelled);
}

}  // namespace
}  // namespace cairn::router
