#include "services/router/relay/prompt_reader.h"

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/log/log.h"
#include "services/router/engine/check_request.h"
#include "services/router/engine/held_prefix.h"
#include "services/router/relay/engine_link.h"
#include "services/router/relay/fetch.h"

namespace cairn::router {
namespace {

using Json = nlohmann::json;
using Messages = std::vector<model::ChatMessage>;
using TokenIds = std::vector<model::TokenId>;

constexpr uint32_t kBytesOfToken = 4;
constexpr uint32_t kAnyContext = 1u << 30;
constexpr uint64_t kMostBytesOfAnyContext = 1 << 20;
constexpr size_t kMaxTokens = 1 << 22;
constexpr uint64_t kMaxAnswerBytes = 64 << 20;
// An engine that cannot tell the tokens of so short a text in time has a problem of its own.
constexpr size_t kShortQuestion = 64 << 10;
// The fields of which an engine's chat template may make tokens, besides the messages.
constexpr const char* kTemplateFields[] = {"messages",
                                           "tools",
                                           "chat_template",
                                           "chat_template_kwargs",
                                           "documents",
                                           "add_generation_prompt",
                                           "mm_processor_kwargs",
                                           "continue_final_message",
                                           "add_special_tokens"};

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::vector<model::TokenId> PackText(std::string_view text) {
  TokenIds packed((text.size() + kBytesOfToken - 1) / kBytesOfToken);
  if (!text.empty()) std::memcpy(packed.data(), text.data(), text.size());
  return packed;
}

std::string TextOf(const GenerateRequest& request) {
  std::string text = request.model + '\0';
  if (const auto* messages = std::get_if<Messages>(&request.prompt)) {
    for (const model::ChatMessage& message : *messages) {
      text += message.role;
      text += '\0';
      text += message.content;
      text += '\0';
    }
  } else if (const auto* prompt = std::get_if<std::string>(&request.prompt)) {
    text += *prompt;
  }
  return text;
}

std::string TokenizeQuestion(const GenerateRequest& request) {
  Json question = Json::object();
  if (!request.model.empty()) question["model"] = request.model;
  if (const auto* prompt = std::get_if<std::string>(&request.prompt)) {
    question["prompt"] = *prompt;
    return Dump(question);
  }
  if (request.raw != nullptr && !request.raw->plain) {
    const Json body = Json::parse(*request.raw->body, nullptr, /*allow_exceptions=*/false);
    if (!body.is_object()) return {};
    for (const char* const field : kTemplateFields) {
      if (const auto found = body.find(field); found != body.end()) question[field] = *found;
    }
    return Dump(question);
  }
  Json messages = Json::array();
  for (const model::ChatMessage& message : std::get<Messages>(request.prompt)) {
    messages.push_back({{"role", message.role}, {"content", message.content}});
  }
  question["messages"] = std::move(messages);
  return Dump(question);
}

Result<std::vector<model::TokenId>> ParseTokens(std::string_view body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  const auto list = json.is_object() ? json.find("tokens") : json.end();
  if (!json.is_object() || list == json.end() || !list->is_array() || list->size() > kMaxTokens) {
    return InvalidArgument("expected an object with a list 'tokens'");
  }
  TokenIds tokens;
  tokens.reserve(list->size());
  for (const Json& token : *list) {
    if (!token.is_number_unsigned() ||
        token.get<uint64_t>() > uint64_t{std::numeric_limits<model::TokenId>::max()}) {
      return InvalidArgument("tokens[{}]: expected the id of a token", tokens.size());
    }
    tokens.push_back(static_cast<model::TokenId>(token.get<uint64_t>()));
  }
  return tokens;
}

PromptReader::PromptReader(const Options& options, const Parts& parts)
    : options_(options),
      parts_(parts),
      tokens_space_(MakeEngineNamespace(EngineKeys::kTokens, options.block_tokens)),
      text_space_(MakeEngineNamespace(EngineKeys::kText,
                                      std::max(1u, options.text_block_bytes / kBytesOfToken))),
      cache_(options.cache_bytes),
      ask_after_(TimePoint::min()) {}

PromptReader::Numbers PromptReader::numbers() const {
  return {.from_tokens = from_tokens_,
          .from_text = from_text_,
          .asked = asked_,
          .failed = failed_,
          .cache_bytes = cache_.numbers().bytes};
}

EnginePrompt PromptReader::OfTokens(std::vector<model::TokenId> tokens) {
  ++from_tokens_;
  return {.tokens = std::move(tokens), .space = tokens_space_};
}

EnginePrompt PromptReader::OfText(const GenerateRequest& request) {
  ++from_text_;
  return {.tokens = PackText(TextOf(request)), .space = text_space_, .exact = false};
}

std::unique_ptr<PromptEncoding> PromptReader::Begin(const GenerateRequest& request,
                                                    uint32_t context_tokens) {
  const bool plain = request.raw == nullptr || request.raw->plain;
  if (parts_.local == nullptr || !plain || std::holds_alternative<TokenIds>(request.prompt)) {
    return nullptr;
  }
  // Where nobody says how long a prompt may be, the text of a long one stands for its tokens.
  if (context_tokens == 0 && PromptBytes(request) > kMostBytesOfAnyContext) return nullptr;
  // As PromptEncoder counts, a token of the answer has room, too: an engine may need none.
  const uint32_t most = context_tokens == 0 ? kAnyContext : context_tokens + 1;
  return std::make_unique<PromptEncoding>(parts_.local, request, most);
}

std::optional<EnginePrompt> PromptReader::Read(const GenerateRequest& request,
                                               std::optional<TokenIds> own, Later later) {
  if (const auto* ids = std::get_if<TokenIds>(&request.prompt)) return OfTokens(*ids);
  if (own) return OfTokens(*std::move(own));
  if (options_.tokenize && parts_.clock->Now() >= ask_after_.load()) {
    std::string question = TokenizeQuestion(request);
    if (const PieceCache::Tokens known = cache_.Find(question); known != nullptr) {
      return OfTokens(*known);
    }
    if (!question.empty() && Ask(request, std::move(question), std::move(later))) {
      return std::nullopt;
    }
  }
  return OfText(request);
}

bool PromptReader::Ask(const GenerateRequest& request, std::string question, Later later) {
  const std::vector<RegisteredWorker> workers = parts_.registry->Workers();
  const uint64_t first = turn_++;
  for (size_t i = 0; i < workers.size(); ++i) {
    const RegisteredWorker& worker = workers[(first + i) % workers.size()];
    if (worker.condition != WorkerCondition::kReady || !Serves(*worker.info, request.model)) {
      continue;
    }
    // It is as long as the prompt, so it counts, too. Text needs no question.
    auto charged = ChargedString::Charge(request.share.Another(), std::move(question));
    if (!charged.ok()) return false;
    const auto body = ChargedString::Shared(*std::move(charged));
    ++asked_;
    http::ClientRequest call{.method = "POST",
                             .target = "/tokenize",
                             .headers = EngineHeaders(parts_.key),
                             .body = body,
                             .max_body_bytes = kMaxAnswerBytes,
                             .silence = options_.patience};
    call.headers.push_back({"Content-Type", "application/json"});
    const std::weak_ptr<http::ClientCall> under_way =
        Fetch(*parts_.client, *http::ParseOrigin(worker.address, "workers"), std::move(call),
              request.share.Another(),
              [this, &request, body, address = worker.address,
               later = std::move(later)](const Result<Fetched>& answer) {
                Status status = answer.ok() ? OkStatus() : answer.status();
                if (answer.ok() && answer->status != 200) {
                  status = Errorf(StatusCode::kUnavailable, "it answered {}, expected 200",
                                  answer->status);
                }
                Result<TokenIds> tokens =
                    status.ok() ? ParseTokens(answer->body.text()) : Result<TokenIds>(status);
                if (tokens.ok()) {
                  cache_.Add(*body, std::make_shared<const TokenIds>(*tokens));
                  return later(OfTokens(*std::move(tokens)));
                }
                ++failed_;
                // A caller's long prompt takes long, and says nothing about the engine.
                if (body->size() <= kShortQuestion) {
                  ask_after_ = parts_.clock->Now() + options_.pause;
                }
                log::Warn("router_tokenize_failed",
                          {{"worker", address}, {"error", ToString(tokens.status())}});
                later(OfText(request));
              });
    // An engine that sends a byte now and then is not silent, and holds the request up, too.
    parts_.client->After(options_.longest, [under_way] {
      if (const auto late = under_way.lock(); late != nullptr) late->Cancel();
    });
    return true;
  }
  return false;
}

}  // namespace cairn::router
