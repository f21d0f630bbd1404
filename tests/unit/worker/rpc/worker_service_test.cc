#include "services/worker/rpc/worker_service.h"

#include <grpcpp/grpcpp.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "cairn/v1/worker.grpc.pb.h"
#include "common/metrics/memory_metrics.h"
#include "common/rpc/trace.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "services/worker/rpc/server.h"
#include "tests/unit/worker/engine/engine_fixture.h"

namespace cairn::worker {
namespace {

constexpr std::chrono::system_clock::time_point kWall{std::chrono::seconds(1'000'000)};

Result<GenerateRequest> FromProto(const v1::GenerateRequest& proto) {
  return worker::FromProto(proto, FakeClock().Now(), kWall);
}

using ::testing::HasSubstr;

TEST(FromProtoTest, RefusesWhatThePlainFormCannotHold) {
  v1::GenerateRequest proto;
  const auto expect_refused = [&](const std::string& what) {
    EXPECT_THAT(FromProto(proto), testing::StatusIs(StatusCode::kInvalidArgument, HasSubstr(what)));
  };
  expect_refused("field 'prompt': not set");
  proto.set_raw_text("x");
  EXPECT_OK(FromProto(proto));
  proto.set_next(static_cast<v1::NextUse>(4));
  expect_refused("field 'next': got 4, expected 0 to 3");
  proto.set_next(v1::NEXT_USE_SOON);
  EXPECT_EQ(FromProto(proto)->next, NextUse::kSoon);
  proto.set_temperature(-0.5);
  expect_refused("field 'temperature': got -0.5, expected 0 to 10");
  proto.set_temperature(std::numeric_limits<double>::quiet_NaN());
  expect_refused("field 'temperature': got nan");
  proto.set_temperature(10.5);
  expect_refused("field 'temperature'");
  proto.set_temperature(0);
  proto.set_top_p(1.5);
  expect_refused("field 'top_p': got 1.5");
  proto.set_top_p(0);
  proto.set_top_k(4'000'000'000u);
  expect_refused("field 'top_k': got 4000000000");
  proto.set_top_k(0);
  proto.set_deadline_unix_ms(999'999'999);
  expect_refused("field 'deadline_unix_ms': got 999999999, expected a time after 1000000000");
}

TEST(FromProtoTest, ADeadlineIsATimeOfTheWall) {
  v1::GenerateRequest proto;
  proto.set_raw_text("x");
  proto.set_deadline_unix_ms(1'000'001'500);
  proto.add_stop("end");
  proto.set_priority(-3);
  proto.set_tenant("t");
  const auto request = FromProto(proto);
  ASSERT_OK(request);
  EXPECT_EQ(request->deadline, FakeClock().Now() + std::chrono::milliseconds(1500));
  EXPECT_EQ(request->stop, std::vector<std::string>{"end"});
  EXPECT_EQ(request->priority, -3);
  EXPECT_EQ(request->tenant, "t");
}

TEST(FromProtoTest, TheTimeThatIsLeftCountsBeforeATimeOfTheWall) {
  v1::GenerateRequest proto;
  proto.set_raw_text("x");
  proto.set_timeout_ms(1500);
  proto.set_deadline_unix_ms(999'999'999);  // A router whose clock is behind.
  const auto request = FromProto(proto);
  ASSERT_OK(request);
  EXPECT_EQ(request->deadline, FakeClock().Now() + std::chrono::milliseconds(1500));
}

TEST(FromProtoTest, ZeroMeansTheDefault) {
  v1::GenerateRequest proto;
  proto.mutable_tokens()->add_ids(7);
  const auto request = FromProto(proto);
  ASSERT_OK(request);
  EXPECT_EQ(request->max_tokens, 256u);
  EXPECT_EQ(request->sampling.top_p, 1.0f);
  EXPECT_EQ(std::get<TokenPrompt>(request->prompt).ids, std::vector<model::TokenId>{7});
}

TEST(ToProtoTest, SummaryKeepsEveryField) {
  GenerateSummary summary;
  summary.prompt_tokens = 200;
  summary.fetched_tokens = 128;
  summary.computed_tokens = 72;
  summary.tokens = {1, 2};
  summary.text = "ab";
  summary.ttft_seconds = 0.5;
  summary.total_seconds = 1;
  summary.queue_seconds = 0.25;
  summary.fetch_seconds = 0.125;
  summary.finish_reason = "stop";
  summary.prompt_logits_sha256 = Sha256::Of("x");
  summary.miss_reason = MissReason::kUnavailable;
  summary.fetched = {.host = 10, .disk = 5, .device = 7};
  v1::GenerateSummary proto;
  ToProto(summary, &proto);
  EXPECT_EQ(proto.prompt_tokens(), 200u);
  EXPECT_EQ(proto.fetched_tokens(), 128u);
  EXPECT_EQ(proto.computed_tokens(), 72u);
  EXPECT_EQ(proto.tokens_size(), 2);
  EXPECT_EQ(proto.text(), "ab");
  EXPECT_EQ(proto.ttft_seconds(), 0.5);
  EXPECT_EQ(proto.total_seconds(), 1);
  EXPECT_EQ(proto.queue_seconds(), 0.25);
  EXPECT_EQ(proto.fetch_seconds(), 0.125);
  EXPECT_EQ(proto.finish_reason(), "stop");
  EXPECT_EQ(proto.prompt_logits_sha256(), Sha256::Of("x").View());
  EXPECT_EQ(proto.miss_reason(), v1::MISS_REASON_UNAVAILABLE);
  EXPECT_EQ(proto.fetched_bytes(), 22u);
  ASSERT_EQ(proto.fetched_by_tier_size(), 3);
  EXPECT_EQ(proto.fetched_by_tier(1).tier(), v1::TIER_KIND_DISK);
  EXPECT_EQ(proto.fetched_by_tier(2).tier(), v1::TIER_KIND_DEVICE);
  EXPECT_EQ(proto.fetched_by_tier(2).bytes(), 7u);
}

class WorkerServiceTest : public EngineFixture {
 protected:
  WorkerServiceTest() : engine_(Worker()), metrics_(registry_, *engine_) {
    auto server =
        Server::Start({.listen = "127.0.0.1:0", .tls = {}}, *engine_, metrics_, &registry_);
    EXPECT_OK(server);
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
    stub_ = v1::Worker::NewStub(channel_);
  }

  static v1::GenerateRequest Proto(size_t prompt, uint32_t max_tokens) {
    v1::GenerateRequest proto;
    const GenerateRequest request = Request(prompt);
    const auto& ids = std::get<TokenPrompt>(request.prompt).ids;
    proto.mutable_tokens()->mutable_ids()->Add(ids.begin(), ids.end());
    proto.set_max_tokens(max_tokens);
    proto.set_ignore_eos(true);
    return proto;
  }

  struct Answer {
    grpc::Status status;
    std::vector<v1::GenerateToken> tokens;
    v1::GenerateSummary summary;
  };
  Answer Generate(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    context.AddMetadata(rpc::kTraceMetadata, "trace-7");
    auto reader = stub_->Generate(&context, request);
    Answer answer;
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
      if (response.has_token()) answer.tokens.push_back(response.token());
      if (response.has_done()) answer.summary = response.done();
    }
    answer.status = reader->Finish();
    return answer;
  }

  metrics::Registry registry_;
  std::unique_ptr<WorkerEngine> engine_;
  WorkerMetrics metrics_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Worker::Stub> stub_;
};

TEST_F(WorkerServiceTest, StreamsTokensThenTheSummary) {
  const Answer answer = Generate(Proto(100, 5));
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.tokens.size(), 5u);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(answer.tokens[static_cast<size_t>(i)].id(), answer.summary.tokens(i));
  }
  EXPECT_EQ(answer.summary.prompt_tokens(), 100u);
  EXPECT_EQ(answer.summary.finish_reason(), "length");
  EXPECT_GT(answer.summary.ttft_seconds(), 0);
}

TEST_F(WorkerServiceTest, LoadIsReportedAtOnceAndThenAgainAndAgain) {
  grpc::ClientContext context;
  v1::WatchLoadRequest request;
  auto reader = stub_->WatchLoad(&context, request);
  v1::LoadReport report;
  const auto begin = std::chrono::steady_clock::now();
  for (uint64_t i = 1; i <= 5; ++i) {
    ASSERT_TRUE(reader->Read(&report));
    EXPECT_EQ(report.sequence(), i);
  }
  // Four intervals of 100 ms. A machine that is busy may be late, and none is early.
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(290));
  EXPECT_GT(report.kv_pages_total(), 0u);
  EXPECT_EQ(report.kv_pages_free(), report.kv_pages_total());
  EXPECT_FALSE(report.draining());
  // The measurements are in the reports that follow.
  ASSERT_TRUE(Generate(Proto(300, 20)).status.ok());
  ASSERT_TRUE(reader->Read(&report));
  ASSERT_TRUE(reader->Read(&report));
  EXPECT_GT(report.prefill_tokens_per_second(), 0);
  EXPECT_GT(report.step_seconds() + report.decode_seconds(), 0);
  server_->BeginDrain();
  while (reader->Read(&report) && !report.draining()) {
  }
  EXPECT_TRUE(report.draining());
  context.TryCancel();
  while (reader->Read(&report)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(WorkerServiceTest, StreamsOfReportsAreBounded) {
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::LoadReport>>> readers;
  size_t refused = 0;
  for (int i = 0; i < 66; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(stub_->WatchLoad(contexts.back().get(), {}));
    v1::LoadReport report;
    if (readers.back()->Read(&report)) continue;
    ++refused;
    EXPECT_EQ(readers.back()->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    readers.pop_back();
    contexts.pop_back();
  }
  EXPECT_GE(refused, 2u);
  for (auto& context : contexts) context->TryCancel();
}

TEST_F(WorkerServiceTest, AnAnswerEndsBeforeItsStopText) {
  v1::GenerateRequest request = Proto(100, 40);
  const Answer whole = Generate(request);
  ASSERT_TRUE(whole.status.ok());
  const std::string& all = whole.summary.text();
  const auto character = [&](size_t byte) {
    while (byte < all.size() && (all[byte] & 0xc0) == 0x80) ++byte;
    return byte;
  };
  const size_t begin = character(all.size() / 2);
  request.add_stop(all.substr(begin, character(begin + 3) - begin));
  const Answer stopped = Generate(request);
  ASSERT_TRUE(stopped.status.ok()) << stopped.status.error_message();
  EXPECT_EQ(stopped.summary.text(), all.substr(0, all.find(request.stop(0))));
  EXPECT_EQ(stopped.summary.finish_reason(), "stop");
}

TEST_F(WorkerServiceTest, ScoresOfATokenizedTextComeInOrderThenTheSummary) {
  grpc::ClientContext tokenize;
  v1::TokenizeRequest text;
  text.set_text("hello there");
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(stub_->Tokenize(&tokenize, text, &tokens).ok());
  ASSERT_GT(tokens.ids_size(), 1);

  v1::ScoreRequest request;
  for (uint32_t i = 0; i < kBlockTokens; ++i) request.mutable_context()->add_ids(30);
  *request.mutable_continuation()->mutable_ids() = tokens.ids();
  grpc::ClientContext context;
  auto reader = stub_->Score(&context, request);
  v1::ScoreResponse response;
  uint32_t rows = 0;
  bool done = false;
  while (reader->Read(&response)) {
    ASSERT_FALSE(done);
    if (response.has_done()) {
      done = true;
      EXPECT_EQ(response.done().prompt_tokens(), kBlockTokens);
      continue;
    }
    EXPECT_EQ(response.rows().first(), rows);
    rows += response.rows().rows();
    EXPECT_EQ(response.rows().logits().size(),
              response.rows().rows() * sizeof(float) *
                  static_cast<size_t>(engine_->model().tokenizer().vocab_size()));
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(done);
  EXPECT_EQ(rows, static_cast<uint32_t>(tokens.ids_size()));

  grpc::ClientContext again;
  request.clear_continuation();
  auto refused = stub_->Score(&again, request);
  EXPECT_FALSE(refused->Read(&response));
  EXPECT_THAT(refused->Finish().error_message(), HasSubstr("field 'continuation': got 0 tokens"));
}

TEST_F(WorkerServiceTest, ErrorsNameTheField) {
  v1::GenerateRequest request = Proto(1024, 5);
  const Answer answer = Generate(request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("field 'prompt': got 1024 tokens"));

  grpc::ClientContext context;
  v1::WaitIdleResponse idle;
  const grpc::Status status = stub_->WaitIdle(&context, v1::WaitIdleRequest(), &idle);
  EXPECT_THAT(status.error_message(), HasSubstr("field 'timeout_ms': got 0, expected 1 to 600000"));
}

TEST_F(WorkerServiceTest, ClientThatLeavesCancelsItsRequest) {
  {
    grpc::ClientContext context;
    auto reader = stub_->Generate(&context, Proto(100, 900));
    v1::GenerateResponse response;
    ASSERT_TRUE(reader->Read(&response));
    context.TryCancel();
    while (reader->Read(&response)) {
    }
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  ASSERT_TRUE(engine_->WaitIdle(std::chrono::seconds(30)));
  const WorkerEngine::Stats stats = engine_->GetStats();
  EXPECT_EQ(stats.requests, 1u);
  EXPECT_EQ(stats.kv_pages_free, stats.kv_pages_total);
}

TEST_F(WorkerServiceTest, InfoAndIdleSayWhatTheEngineKnows) {
  Generate(Proto(200, 2));
  grpc::ClientContext idle_context;
  v1::WaitIdleRequest wait;
  wait.set_timeout_ms(30000);
  v1::WaitIdleResponse idle;
  ASSERT_TRUE(stub_->WaitIdle(&idle_context, wait, &idle).ok());
  EXPECT_TRUE(idle.idle());
  EXPECT_EQ(idle.pushed_blocks(), 3u);
  grpc::ClientContext info_context;
  v1::WorkerInfo info;
  ASSERT_TRUE(stub_->GetInfo(&info_context, v1::WorkerInfoRequest(), &info).ok());
  EXPECT_EQ(info.context_tokens(), 1024u);
  EXPECT_EQ(info.block_tokens(), 64u);
  EXPECT_EQ(info.fingerprint().size(), 32u);
  EXPECT_EQ(info.weights_digest().size(), 64u);
}

TEST_F(WorkerServiceTest, MetricsCountRequestsTokensAndMisses) {
  Generate(Proto(200, 2));
  ASSERT_TRUE(engine_->WaitIdle(std::chrono::seconds(30)));
  Generate(Proto(200, 2));
  const std::string text = registry_.Scrape();
  for (const char* line :
       {"cairn_worker_requests_total{result=\"completed\"} 2",
        "cairn_worker_tokens_total{kind=\"fetched\"} 192",
        "cairn_worker_tokens_total{kind=\"computed\"} 208",
        "cairn_worker_missed_blocks_total{reason=\"absent\"} 3",
        "cairn_worker_pushed_blocks_total{result=\"stored\"} 3",
        "cairn_worker_request_seconds_count 2", "cairn_worker_token_seconds_count 2",
        "cairn_worker_ttft_seconds_count{prefix=\"computed\"} 1",
        "cairn_worker_ttft_seconds_count{prefix=\"fetched\"} 1"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST_F(WorkerServiceTest, MetricsCountWhatCodecsDo) {
  WorkerEngine::Options options = Options();
  options.recipe = "int8";
  const auto writer = Worker(options);
  const auto reader = Worker(options);
  Run(*writer, Request(200));
  Idle(*writer);
  EXPECT_EQ(Run(*reader, Request(200)).fetched_tokens, 192u);

  metrics::Registry written;
  const WorkerMetrics of_writer(written, *writer);
  metrics::Registry read;
  const WorkerMetrics of_reader(read, *reader);
  // Three blocks of int8:group=64, which has 8.25 bits for each number's 16.
  constexpr uint64_t kPages = 3 * kLayers * kLayerBytes;
  const auto line = [](const char* what, const char* direction, uint64_t bytes) {
    return fmt::format("cairn_worker_codec_{}_bytes_total{{codec=\"int8\",direction=\"{}\"}} {}\n",
                       what, direction, bytes);
  };
  EXPECT_THAT(written.Scrape(), HasSubstr(line("input", "encode", kPages)));
  EXPECT_THAT(written.Scrape(), HasSubstr(line("output", "encode", kPages / 64 * 33)));
  EXPECT_THAT(written.Scrape(), HasSubstr(line("input", "decode", 0)));
  EXPECT_THAT(read.Scrape(), HasSubstr(line("input", "decode", kPages / 64 * 33)));
  EXPECT_THAT(read.Scrape(), HasSubstr(line("output", "decode", kPages)));
  EXPECT_GT(reader->GetStats().codecs.at(0).decode.seconds, 0);
  // Under raw, pages are stored as they are.
  EXPECT_THAT(registry_.Scrape(),
              HasSubstr("codec_input_bytes_total{codec=\"raw\",direction=\"encode\"} 0\n"));
}

TEST_F(WorkerServiceTest, TheDocumentListsTheMetricsAndNothingElse) {
  const auto names = [](const std::string& text, const std::regex& pattern) {
    std::set<std::string> found;
    for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) {
      found.insert((*it)[1]);
    }
    return found;
  };
  // As the process does.
  MemoryAccount memory(engine_->memory_bounds());
  registry_.AddCollector(
      [&](metrics::Sink& sink) { metrics::ExportMemory(memory, "cairn_worker_memory", sink); });
  std::ostringstream document;
  document << std::ifstream("docs/operate/metrics-worker.md").rdbuf();
  EXPECT_EQ(names(document.str(), std::regex("\n\\| `([a-z_]+)`")),
            names(registry_.Scrape(), std::regex("# TYPE (cairn_worker_[a-z_]+) ")));
}

TEST_F(WorkerServiceTest, CallsAreCountedAsThoseOfANode) {
  Generate(Proto(100, 2));
  EXPECT_THAT(registry_.Scrape(),
              HasSubstr("cairn_rpc_requests_total{code=\"OK\",method=\"Generate\"} 1\n"));
}

TEST_F(WorkerServiceTest, HealthSaysWhenTheWorkerStops) {
  const auto stub = grpc::health::v1::Health::NewStub(channel_);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(kWorkerService);
  const auto ask = [&] {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse response;
    EXPECT_TRUE(stub->Check(&context, request, &response).ok());
    return response.status();
  };
  EXPECT_EQ(ask(), grpc::health::v1::HealthCheckResponse::SERVING);
  server_->BeginDrain();
  EXPECT_EQ(ask(), grpc::health::v1::HealthCheckResponse::NOT_SERVING);
}

TEST_F(WorkerServiceTest, SecondServerOnThePortIsAnError) {
  metrics::Registry second;
  EXPECT_THAT(Server::Start({.listen = server_->address(), .tls = {}}, *engine_, metrics_, &second),
              testing::StatusIs(StatusCode::kUnavailable, HasSubstr(server_->address())));
}

}  // namespace
}  // namespace cairn::worker
