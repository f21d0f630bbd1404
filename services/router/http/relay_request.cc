#include "services/router/http/relay_request.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "services/router/http/json_fields.h"

namespace cairn::router {
namespace {

using Json = nlohmann::json;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The text of a message, and whether it is all that there is. Content that is no text is kept as
// its JSON.
std::string ContentOf(const Json& message, bool* plain) {
  std::string all;
  const auto content = message.find("content");
  if (content != message.end() && content->is_string()) {
    all = content->get<std::string>();
  } else if (content != message.end() && content->is_array()) {
    for (const Json& part : *content) {
      const auto text = part.is_object() ? part.find("text") : part.end();
      const bool is_text = part.is_object() && text != part.end() && text->is_string();
      *plain &= is_text;
      all += is_text ? text->get<std::string>() : Dump(part);
    }
  } else if (content != message.end() && !content->is_null()) {
    // The engine knows what it means.
    *plain = false;
    all += Dump(*content);
  }
  for (const auto& [name, value] : message.items()) {
    if (name == "role" || name == "content" || name == "name" || value.is_null()) continue;
    *plain = false;
    all += name + Dump(value);
  }
  return all;
}

std::vector<model::ChatMessage> MessagesOf(Fields& fields, bool* plain) {
  std::vector<model::ChatMessage> messages;
  const Json* const all = fields.Find("messages");
  if (all == nullptr || !all->is_array() || all->empty()) {
    fields.Fail("messages", all == nullptr ? Json() : *all, "a list of messages");
    return messages;
  }
  messages.reserve(all->size() + 1);
  // Templates put tools before the messages.
  for (const char* const name : {"tools", "functions", "documents"}) {
    const Json* const value = fields.Find(name);
    if (value == nullptr || value->empty()) continue;
    *plain = false;
    messages.push_back({name, Dump(*value)});
  }
  for (size_t i = 0; i < all->size(); ++i) {
    const Json& message = (*all)[i];
    const std::string where = fmt::format("messages[{}]", i);
    const auto role = message.is_object() ? message.find("role") : message.end();
    if (!message.is_object() || role == message.end() || !role->is_string()) {
      fields.Fail(where, message, "an object with a role");
      break;
    }
    messages.push_back({role->get<std::string>(), ContentOf(message, plain)});
  }
  return messages;
}

// The token ids of a list, if all of it are ids.
std::optional<std::vector<model::TokenId>> IdsOf(const Json& list) {
  Fields fields(list);
  std::vector<model::TokenId> ids = ReadTokenIds(fields, "prompt", list);
  if (fields.failed()) return std::nullopt;
  return ids;
}

// If there are several prompts, the first one decides: they go to one engine. A prompt that is
// neither text nor ids is the engine's to judge, for example a list of both: its JSON is kept, as
// in a message.
decltype(GenerateRequest::prompt) PromptOf(const Fields& fields, bool* plain) {
  const Json* prompt = fields.Find("prompt");
  // Some engines take embeddings in another field.
  if (prompt == nullptr) return std::string();
  if (prompt->is_array() && !prompt->empty() &&
      (prompt->front().is_string() || prompt->front().is_array())) {
    prompt = &prompt->front();
  }
  if (prompt->is_string()) return prompt->get<std::string>();
  if (prompt->is_array() && !prompt->empty()) {
    if (auto ids = IdsOf(*prompt)) return *std::move(ids);
  }
  *plain = false;
  return Dump(*prompt);
}

// How long the answer may get, for the decision. Engines have values of their own that mean
// "without a limit" (-1, 0), and judge all others themselves.
std::optional<uint32_t> MaxTokensOf(const Fields& fields) {
  for (const char* const name : {"max_completion_tokens", "max_tokens"}) {
    const Json* const value = fields.Find(name);
    if (value == nullptr) continue;
    const std::optional<int64_t> tokens = WholeNumber(*value);
    if (!tokens || *tokens < 1 || *tokens > std::numeric_limits<int32_t>::max()) continue;
    return static_cast<uint32_t>(*tokens);
  }
  return std::nullopt;
}

}  // namespace

std::variant<ApiRequest, ApiError> ParseRelayRequest(Endpoint endpoint,
                                                     std::vector<RawHeader> headers,
                                                     ChargedString body) {
  auto parsed = ParseBody(body.text());
  if (const auto* error = std::get_if<ApiError>(&parsed)) return *error;
  Fields fields(std::get<Json>(parsed));
  ApiRequest request;
  request.has_seed = true;  // The engine draws its own.
  GenerateRequest& generate = request.generate;
  auto raw = std::make_shared<RawCall>();
  if (const Json* const model = fields.Find("model"); model != nullptr) {
    if (model->is_string()) {
      generate.model = model->get<std::string>();
    } else {
      fields.Fail("model", *model, "a model's id");
    }
  }
  if (endpoint == Endpoint::kChat) {
    generate.prompt = MessagesOf(fields, &raw->plain);
  } else {
    generate.prompt = PromptOf(fields, &raw->plain);
  }
  generate.max_tokens = MaxTokensOf(fields);
  request.stream = raw->stream = fields.Bool("stream");
  if (fields.failed()) return fields.error();
  if (auto error = Charge(body.AnotherShare(), &generate)) return *std::move(error);
  raw->path = endpoint == Endpoint::kChat ? "/v1/chat/completions" : "/v1/completions";
  raw->body = ChargedString::Shared(std::move(body));
  raw->headers = std::move(headers);
  generate.raw = std::move(raw);
  return request;
}

}  // namespace cairn::router
