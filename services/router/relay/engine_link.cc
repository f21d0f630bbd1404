#include "services/router/relay/engine_link.h"

#include <utility>

#include "common/tracing/trace_context.h"
#include "services/router/relay/answer_relay.h"
#include "services/router/relay/engine_load.h"
#include "services/router/relay/engine_watch.h"

namespace cairn::router {
namespace {

constexpr char kTraceParent[] = "traceparent";

class HttpCall final : public WorkerCall {
 public:
  explicit HttpCall(std::shared_ptr<http::ClientCall> call) : call_(std::move(call)) {}
  void Cancel() override { call_->Cancel(); }

 private:
  const std::shared_ptr<http::ClientCall> call_;
};

class CountedCall final : public ForeignCall {
 public:
  CountedCall(std::shared_ptr<EngineLoad> load, const EngineLoad::Prompt& prompt)
      : load_(std::move(load)), id_(load_->Begin(prompt)) {}
  ~CountedCall() override { load_->End(id_); }
  void Generated(uint32_t tokens) override { load_->Tokens(id_, tokens); }

 private:
  const std::shared_ptr<EngineLoad> load_;
  const uint64_t id_;
};

class EngineLink final : public WorkerLink {
 public:
  EngineLink(const std::string& address, const EngineLinkOptions& options, http::Client* client,
             KeyFile* key, const Clock* clock)
      : address_(address),
        options_(options),
        origin_(*http::ParseOrigin(address, "workers")),
        client_(client),
        key_(key),
        load_(std::make_shared<EngineLoad>(clock)) {}

  std::shared_ptr<WorkerCall> Generate(const WorkerRequest& request,
                                       std::shared_ptr<WorkerAnswerObserver> observer) override {
    http::ClientRequest call{.method = "POST",
                             .target = request.raw->path,
                             .headers = EngineHeaders(key_),
                             .body = request.raw->body,
                             // The relay has bounds: a stream may be of any length.
                             .silence = options_.silence};
    call.headers.push_back({"Content-Type", "application/json"});
    call.headers.push_back(
        {"Accept", request.raw->stream ? "text/event-stream" : "application/json"});
    const bool traced = tracing::ParseTraceParent(request.trace).has_value();
    for (const RawHeader& header : request.raw->headers) {
      if (traced && header.name == kTraceParent) continue;  // This router is in between.
      call.headers.push_back({header.name, header.value});
    }
    if (traced) call.headers.push_back({kTraceParent, request.trace});
    auto relay = std::make_shared<AnswerRelay>(
        AnswerRelay::Bounds{.max_answer_bytes = options_.max_answer_bytes,
                            .answers = options_.answers},
        request, load_, std::move(observer));
    return std::make_shared<HttpCall>(client_->Send(origin_, std::move(call), std::move(relay)));
  }

  std::unique_ptr<ForeignCall> FollowForeign(const ForeignRequest& request) override {
    return std::make_unique<CountedCall>(load_,
                                         EngineLoad::Prompt{.tokens = request.prompt_tokens,
                                                            .held_tokens = request.held_tokens,
                                                            .stream = request.stream});
  }

  std::shared_ptr<WorkerCall> Watch(std::shared_ptr<WorkerWatchObserver> observer) override {
    const bool has_events = options_.has_events && options_.has_events(address_);
    return EngineWatch::Begin({.origin = origin_,
                               .block_tokens = options_.block_tokens,
                               .load_interval = options_.load_interval,
                               .holder = has_events ? address_ : "",
                               .client = client_,
                               .key = key_,
                               .load = load_},
                              std::move(observer));
  }

 private:
  const std::string address_;
  const EngineLinkOptions options_;
  const http::Origin origin_;
  http::Client* const client_;
  KeyFile* const key_;
  const std::shared_ptr<EngineLoad> load_;
};

}  // namespace

MakeWorkerLink EngineLinks(const EngineLinkOptions& options, http::Client* client, KeyFile* key,
                           const Clock* clock) {
  return [options, client, key, clock](const std::string& address) {
    return std::make_unique<EngineLink>(address, options, client, key, clock);
  };
}

std::vector<http::Header> EngineHeaders(KeyFile* key) {
  std::vector<http::Header> headers;
  if (key != nullptr) headers.push_back({"Authorization", "Bearer " + key->Get()});
  return headers;
}

}  // namespace cairn::router
