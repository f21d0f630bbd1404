#include "tests/integration/worker_support.h"

#include <grpcpp/grpcpp.h>
#include <poll.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "cairn/v1/worker.grpc.pb.h"
#include "common/metrics/admin_server.h"
#include "common/rpc/status.h"

namespace cairn::testing {
namespace {

constexpr char kSmallModel[] = "tests/data/gguf/kquant.gguf";
constexpr char kLargeModel[] = "build/models/SmolLM2-135M-Instruct.Q4_1.gguf";

std::string Field(const std::string& line, const std::string& name) {
  std::istringstream words(line);
  std::string word;
  while (words >> word) {
    if (word.rfind(name + "=", 0) == 0) return word.substr(name.size() + 1);
  }
  return "";
}

// Random tokens that begin alike for all requests of one seed.
v1::GenerateRequest RequestOf(uint32_t tokens, uint32_t seed, uint32_t max_tokens) {
  v1::GenerateRequest request;
  uint32_t state = seed * 2654435761u;
  for (uint32_t i = 0; i < tokens; ++i) {
    state = state * 1664525u + 1013904223u;
    request.mutable_tokens()->add_ids(static_cast<int32_t>(20 + (state >> 16) % 200));
  }
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(true);
  request.set_want_logits_digest(true);
  return request;
}

}  // namespace

struct WorkerProcess::Stub {
  std::unique_ptr<v1::Worker::Stub> rpc;

  Answer Send(const v1::GenerateRequest& request, const std::function<void()>& announced) const {
    grpc::ClientContext context;
    auto reader = rpc->Generate(&context, request);
    Answer answer;
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
      if (response.has_announced() && announced) announced();
      if (!response.has_done()) continue;
      const v1::GenerateSummary& done = response.done();
      answer.tokens.assign(done.tokens().begin(), done.tokens().end());
      answer.text = done.text();
      answer.logits_digest = done.prompt_logits_sha256();
      answer.finish_reason = done.finish_reason();
      answer.prompt_tokens = done.prompt_tokens();
      answer.fetched_tokens = done.fetched_tokens();
      answer.miss_reason = done.miss_reason();
      answer.ttft_seconds = done.ttft_seconds();
      answer.selected_tokens = done.selected_tokens();
      for (const v1::TierBytes& tier : done.fetched_by_tier()) {
        (tier.tier() == v1::TIER_KIND_DISK ? answer.disk_bytes : answer.host_bytes) += tier.bytes();
      }
    }
    answer.status = rpc::FromGrpc(reader->Finish());
    return answer;
  }
};

std::string TestModel() {
  const char* named = std::getenv("CAIRN_TEST_MODEL");
  if (named != nullptr) return named;
  return std::filesystem::exists(kLargeModel) ? kLargeModel : kSmallModel;
}

bool HaveLargeModel() { return TestModel() != kSmallModel; }

WorkerProcess::WorkerProcess() = default;
WorkerProcess::~WorkerProcess() = default;

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(const std::string& cache,
                                                            const std::vector<std::string>& args) {
  std::vector<std::string> argv = {Binary("cairn-worker"), "--model", TestModel(), "--listen",
                                   "127.0.0.1:0", "--admin.listen", "127.0.0.1:0", "--threads", "2",
                                   // As long as can be: how much is fetched must not depend on how
                                   // fast this machine computes. Later flags override it.
                                   "--cache.match_deadline", "10s", "--cache.stall_deadline", "1m"};
  if (!cache.empty()) argv.insert(argv.end(), {"--cache", cache, "--cache.choose", "false"});
  argv.insert(argv.end(), args.begin(), args.end());
  std::unique_ptr<WorkerProcess> worker(new WorkerProcess());
  CAIRN_ASSIGN_OR_RETURN(worker->process_,
                         Process::Start({.argv = argv, .environment = {}, .directory = {}}));
  CAIRN_ASSIGN_OR_RETURN(const std::string line,
                         worker->process_->WaitForLine("ready ", std::chrono::seconds(120)));
  worker->address_ = Field(line, "grpc");
  worker->admin_ = Field(line, "admin");
  worker->stub_ = std::make_unique<Stub>();
  worker->stub_->rpc = v1::Worker::NewStub(
      grpc::CreateChannel(worker->address_, grpc::InsecureChannelCredentials()));
  return worker;
}

Answer WorkerProcess::Generate(uint32_t tokens, uint32_t seed, uint32_t max_tokens,
                               uint32_t prefix_end) {
  v1::GenerateRequest request = RequestOf(tokens, seed, max_tokens);
  request.set_prefix_end(prefix_end);
  return stub_->Send(request, nullptr);
}

Answer WorkerProcess::GenerateApart(uint32_t tokens, const Apart& apart, uint32_t seed) {
  v1::GenerateRequest request = RequestOf(tokens, seed, 8);
  request.set_prefill_only(apart.prefill_only);
  request.set_await_prefill_ms(apart.await_prefill_ms);
  return stub_->Send(request, apart.announced);
}

bool WorkerProcess::WaitIdle(std::chrono::milliseconds timeout) {
  grpc::ClientContext context;
  v1::WaitIdleRequest request;
  request.set_timeout_ms(static_cast<uint32_t>(timeout.count()));
  v1::WaitIdleResponse response;
  return stub_->rpc->WaitIdle(&context, request, &response).ok() && response.idle();
}

bool WorkerProcess::WaitConnected(bool connected, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (std::chrono::steady_clock::now() < deadline) {
    grpc::ClientContext context;
    v1::WorkerInfo info;
    if (!stub_->rpc->GetInfo(&context, v1::WorkerInfoRequest(), &info).ok()) return false;
    if (info.cache_connected() == connected) return true;
    poll(nullptr, 0, 10);  // A worker does not announce its connection: it has to be asked.
  }
  return false;
}

std::string WorkerProcess::Metrics() {
  const auto text = metrics::HttpGet(admin_, "/metrics", std::chrono::seconds(60));
  return text.ok() ? *text : "";
}

double WorkerProcess::Metric(const std::string& name_and_labels) {
  std::istringstream lines(Metrics());
  std::string line;
  while (std::getline(lines, line)) {
    if (line.rfind(name_and_labels + " ", 0) == 0) {
      return std::stod(line.substr(name_and_labels.size() + 1));
    }
  }
  return -1;
}

}  // namespace cairn::testing
