#include "benchmarks/compare/router/engine_api.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace cairn::compare {
namespace {

http::Response Error(int status, const std::string& message) {
  const nlohmann::json json = {{"error",
                                {{"message", message},
                                 {"type", "invalid_request_error"},
                                 {"param", nullptr},
                                 {"code", status}}}};
  return {.status = status,
          .body = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

std::string Models() {
  return fmt::format(
      R"({{"object":"list","data":[{{"id":"{}","object":"model","created":1700000000,)"
      R"("owned_by":"vllm","max_model_len":1000000}}]}})",
      kModelId);
}

http::Response Tokenized(const http::Request& request) {
  const bool chat = request.body.text().find("\"messages\"") != std::string::npos;
  const auto ask = ParseEngineAsk(chat, request.body.text());
  if (!ask.ok()) return Error(400, std::string(ask.status().message()));
  const std::vector<uint32_t> tokens = TokensOf(ask->text);
  return {.body = fmt::format(R"({{"count":{},"max_model_len":1000000,"tokens":[{}]}})",
                              tokens.size(), fmt::join(tokens, ","))};
}

}  // namespace

void EngineApi::Handle(http::Request request, std::shared_ptr<http::Responder> responder) {
  const std::string& path = request.path;
  if (request.method == "POST" && path == "/v1/completions") {
    return Generate(false, request, std::move(responder));
  }
  if (request.method == "POST" && path == "/v1/chat/completions") {
    return Generate(true, request, std::move(responder));
  }
  if (request.method == "POST" && path == "/tokenize") return responder->Send(Tokenized(request));
  if (request.method != "GET") return responder->Send(Error(404, "Not Found"));
  if (path == "/health") return responder->Send({.content_type = "text/plain"});
  if (path == "/v1/models") return responder->Send({.body = Models()});
  if (path == "/version") return responder->Send({.body = R"({"version":"0.11.0"})"});
  if (path == "/metrics") {
    return responder->Send({.content_type = "text/plain; version=0.0.4", .body = Metrics()});
  }
  responder->Send(Error(404, "Not Found"));
}

http::Response EngineApi::Refuse(int status, const std::string& message) {
  return Error(status, message);
}

void EngineApi::Generate(bool chat, const http::Request& request,
                         std::shared_ptr<http::Responder> responder) {
  const auto ask = ParseEngineAsk(chat, request.body.text());
  if (!ask.ok()) return responder->Send(Error(400, std::string(ask.status().message())));
  auto answer = std::make_unique<EngineAnswer>(
      *ask, fmt::format("cmpl-{}-{}", engine_, next_.fetch_add(1)), std::move(responder));
  if (answers_ == Answers::kSimulated) {
    return simulation_->Submit(engine_, *ask, std::move(answer));
  }
  answer->Tokens(1);
  if (answers_ == Answers::kHeld && ask->stream) {
    MutexLock lock(mu_);
    held_.push_back(std::move(answer));
    return;
  }
  if (ask->max_tokens > 1) answer->Tokens(ask->max_tokens - 1);
  answer->End(0);
}

std::string EngineApi::Metrics() const {
  const simulated::WorkerFacts facts =
      answers_ == Answers::kSimulated ? simulation_->Facts(engine_) : simulated::WorkerFacts();
  return fmt::format(
      "# TYPE vllm:num_requests_running gauge\n"
      "vllm:num_requests_running{{model_name=\"{0}\"}} {1}\n"
      "# TYPE vllm:num_requests_waiting gauge\n"
      "vllm:num_requests_waiting{{model_name=\"{0}\"}} {2}\n"
      "# TYPE vllm:kv_cache_usage_perc gauge\n"
      "vllm:kv_cache_usage_perc{{model_name=\"{0}\"}} {3:.6f}\n",
      kModelId, facts.requests - facts.not_begun, facts.not_begun, facts.kv_use);
}

}  // namespace cairn::compare
