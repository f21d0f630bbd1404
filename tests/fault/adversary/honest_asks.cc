#include "tests/fault/adversary/honest_asks.h"

#include <fmt/ranges.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>

#include <atomic>

#include "cairn/v1/router.grpc.pb.h"
#include "cairn/v1/worker.grpc.pb.h"
#include "common/metrics/admin_server.h"
#include "common/rpc/status.h"
#include "envoy/service/ext_proc/v3/external_processor.grpc.pb.h"
#include "tests/fault/adversary/picker_client.h"
#include "tests/fault/adversary/wire_client.h"
#include "tests/fault/adversary/wire_http.h"

namespace cairn::fault {
namespace {

constexpr Duration kDeadline = std::chrono::seconds(20);
constexpr uint32_t kAnswers = 32;
constexpr uint32_t kAnswerTokens = 4;

// Beginnings are shared by some, as those of conversations.
std::vector<int32_t> PromptOf(uint32_t number) {
  std::vector<int32_t> ids;
  uint32_t state = (number % 8 + 1) * 2654435761U;
  for (uint32_t i = 0; i < 80 + number * 10; ++i) {
    state = state * 1664525U + 1013904223U;
    ids.push_back(static_cast<int32_t>(20 + (state >> 16) % 200));
  }
  return ids;
}

v1::GenerateRequest RequestOf(const std::vector<int32_t>& prompt, const std::string& tenant) {
  v1::GenerateRequest request;
  request.mutable_tokens()->mutable_ids()->Assign(prompt.begin(), prompt.end());
  request.set_max_tokens(kAnswerTokens);
  request.set_ignore_eos(true);
  request.set_tenant(tenant);
  return request;
}

std::shared_ptr<grpc::Channel> ConnectAlone(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// The tokens of an answer. A failure: what the call ended with.
template <typename Stub>
Result<KnownAnswer> Generate(Stub& stub, const v1::GenerateRequest& request) {
  CallContext context({}, kDeadline);
  const auto reader = stub.Generate(context.get(), request);
  KnownAnswer answer;
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (!response.has_done()) continue;
    answer.tokens.assign(response.done().tokens().begin(), response.done().tokens().end());
    answer.text = response.done().text();
  }
  CAIRN_RETURN_IF_ERROR(rpc::FromGrpc(reader->Finish()));
  return answer;
}

const KnownAnswer& OneOf(const std::vector<KnownAnswer>& answers, std::mt19937_64& random) {
  return answers[random() % answers.size()];
}

class HttpAsks final : public HonestClient {
 public:
  HttpAsks(std::string http, const std::string& key, const std::vector<KnownAnswer>& answers)
      : http_(std::move(http)), header_("Authorization: Bearer " + key), answers_(answers) {}

  void Step(std::mt19937_64& random, HonestNotes& notes) override {
    const KnownAnswer& known = OneOf(answers_, random);
    const bool stream = random() % 2 == 0;
    HonestCall call{.what = stream ? "stream" : "completion", .begin = SteadyClock::Get().Now()};
    const HttpReply reply =
        AskHttp(http_,
                HttpRequest("POST /v1/completions",
                            CompletionOf(known.prompt, kAnswerTokens, stream), {header_}),
                {}, kDeadline);
    if (reply.status != 200) {
      call.failure = fmt::format("status {}: {}", reply.status, reply.body.substr(0, 200));
    } else if (!reply.whole || (stream && reply.body.find("data: [DONE]") == std::string::npos)) {
      call.failure = "an answer without its end: " + reply.body.substr(0, 200);
    } else if (const std::string text = TextsOf(reply.body); text != known.text) {
      call.wrong.push_back(fmt::format("'{}' instead of '{}'", text, known.text));
    }
    notes.Note(std::move(call));
  }

 private:
  const std::string http_, header_;
  const std::vector<KnownAnswer>& answers_;
};

template <typename Service>
class GrpcAsks final : public HonestClient {
 public:
  GrpcAsks(const std::string& address, std::string tenant, const std::vector<KnownAnswer>& answers)
      : stub_(Service::NewStub(ConnectAlone(address))),
        tenant_(std::move(tenant)),
        answers_(answers) {}

  void Step(std::mt19937_64& random, HonestNotes& notes) override {
    const KnownAnswer& known = OneOf(answers_, random);
    HonestCall call{.what = "answer", .begin = SteadyClock::Get().Now()};
    const Result<KnownAnswer> answer = Generate(*stub_, RequestOf(known.prompt, tenant_));
    if (!answer.ok()) {
      call.failure = ToString(answer.status()).substr(0, 200);
    } else if (answer->tokens != known.tokens || answer->text != known.text) {
      call.wrong.push_back(fmt::format("tokens {} instead of {}", fmt::join(answer->tokens, " "),
                                       fmt::join(known.tokens, " ")));
    }
    notes.Note(std::move(call));
  }

 private:
  const std::unique_ptr<typename Service::Stub> stub_;
  const std::string tenant_;
  const std::vector<KnownAnswer>& answers_;
};

class PickerAsks final : public HonestClient {
 public:
  PickerAsks(const std::string& picker, std::string endpoint,
             const std::vector<KnownAnswer>& answers)
      : stub_(ext_proc::ExternalProcessor::NewStub(ConnectAlone(picker))),
        endpoint_(std::move(endpoint)),
        answers_(answers) {}

  void Step(std::mt19937_64& random, HonestNotes& notes) override {
    HonestCall call{.what = "pick", .begin = SteadyClock::Get().Now()};
    CallContext context({}, kDeadline);
    const auto stream = stub_->Process(context.get());
    ext_proc::ProcessingResponse reply;
    std::string endpoint;
    stream->Write(PickHead("/v1/completions", {}));
    stream->Write(
        PickBody(CompletionOf(OneOf(answers_, random).prompt, kAnswerTokens, true), true));
    while (endpoint.empty() && stream->Read(&reply)) endpoint = EndpointIn(reply);
    context.get()->TryCancel();
    const grpc::Status status = stream->Finish();
    if (endpoint.empty()) {
      call.failure = fmt::format("no endpoint: {}; {}", status.error_message(),
                                 reply.immediate_response().body().substr(0, 200));
    } else if (endpoint != endpoint_) {
      call.wrong.push_back(fmt::format("endpoint {} instead of {}", endpoint, endpoint_));
    }
    notes.Note(std::move(call));
  }

 private:
  const std::unique_ptr<ext_proc::ExternalProcessor::Stub> stub_;
  const std::string endpoint_;
  const std::vector<KnownAnswer>& answers_;
};

class Scrapes final : public HonestClient {
 public:
  explicit Scrapes(std::vector<std::string> admins) : admins_(std::move(admins)) {}

  void Step(std::mt19937_64&, HonestNotes& notes) override {
    HonestCall call{.what = "scrape", .begin = SteadyClock::Get().Now()};
    const std::string& admin = admins_[next_.fetch_add(1) % admins_.size()];
    const auto text = metrics::HttpGet(admin, "/metrics", kDeadline);
    if (!text.ok()) {
      call.failure = ToString(text.status());
    } else if (text->find("cairn_") == std::string::npos) {
      call.wrong.push_back("no metrics: " + text->substr(0, 100));
    }
    notes.Note(std::move(call));
  }

 private:
  const std::vector<std::string> admins_;
  std::atomic<size_t> next_{0};
};

}  // namespace

Result<std::vector<KnownAnswer>> AskAll(const std::string& worker) {
  const auto stub = v1::Worker::NewStub(ConnectAlone(worker));
  std::vector<KnownAnswer> answers;
  for (uint32_t i = 0; i < kAnswers; ++i) {
    const std::vector<int32_t> prompt = PromptOf(i);
    v1::GenerateRequest request = RequestOf(prompt, "");
    request.set_no_cache(true);
    CAIRN_ASSIGN_OR_RETURN(KnownAnswer answer, Generate(*stub, request));
    answer.prompt = prompt;
    answers.push_back(std::move(answer));
  }
  return answers;
}

std::unique_ptr<HonestClient> NewHttpAsks(const std::string& http, const std::string& key,
                                          const std::vector<KnownAnswer>& answers) {
  return std::make_unique<HttpAsks>(http, key, answers);
}

std::unique_ptr<HonestClient> NewRouterAsks(const std::string& router, const std::string& tenant,
                                            const std::vector<KnownAnswer>& answers) {
  return std::make_unique<GrpcAsks<v1::Router>>(router, tenant, answers);
}

std::unique_ptr<HonestClient> NewWorkerAsks(const std::string& worker, const std::string& tenant,
                                            const std::vector<KnownAnswer>& answers) {
  return std::make_unique<GrpcAsks<v1::Worker>>(worker, tenant, answers);
}

std::unique_ptr<HonestClient> NewPickerAsks(const std::string& picker, const std::string& endpoint,
                                            const std::vector<KnownAnswer>& answers) {
  return std::make_unique<PickerAsks>(picker, endpoint, answers);
}

std::unique_ptr<HonestClient> NewScrapes(const std::vector<std::string>& admins) {
  return std::make_unique<Scrapes>(admins);
}

std::string CompletionOf(const std::vector<int32_t>& prompt, uint32_t max_tokens, bool stream) {
  return fmt::format(
      R"({{"prompt":[{}],"max_tokens":{},"temperature":0,"ignore_eos":true,"stream":{}}})",
      fmt::join(prompt, ","), max_tokens, stream);
}

}  // namespace cairn::fault
