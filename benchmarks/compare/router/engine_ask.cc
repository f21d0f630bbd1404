#include "benchmarks/compare/router/engine_ask.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>

namespace cairn::compare {
namespace {

using Json = nlohmann::json;

Status Append(const Json& json, const char* field, std::string* text) {
  if (!json.is_string()) {
    return InvalidArgument("{}: got {}, expected text", field, json.type_name());
  }
  *text += json.get_ref<const std::string&>();
  return OkStatus();
}

Status ReadText(const Json& json, EngineAsk* ask) {
  if (!ask->chat) return Append(json.value("prompt", Json()), "prompt", &ask->text);
  const Json messages = json.value("messages", Json());
  if (!messages.is_array()) {
    return InvalidArgument("messages: got {}, expected a list", messages.type_name());
  }
  for (const Json& message : messages) {
    if (!message.is_object()) {
      return InvalidArgument("messages: got {}, expected objects", message.type_name());
    }
    CAIRN_RETURN_IF_ERROR(Append(message.value("content", Json()), "content", &ask->text));
  }
  return OkStatus();
}

bool Flag(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_boolean() && found->get<bool>();
}

}  // namespace

Result<EngineAsk> ParseEngineAsk(bool chat, const std::string& body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument("body: expected a JSON object");
  EngineAsk ask;
  ask.chat = chat;
  CAIRN_RETURN_IF_ERROR(ReadText(json, &ask));
  if (ask.text.empty()) return InvalidArgument("prompt: got no text, expected some");
  ask.stream = Flag(json, "stream");
  const auto options = json.find("stream_options");
  ask.include_usage =
      options != json.end() && options->is_object() && Flag(*options, "include_usage");
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    const auto found = json.find(name);
    if (found == json.end() || found->is_null()) continue;
    if (!found->is_number_integer() || found->get<int64_t>() < 1) {
      return InvalidArgument("{}: got {}, expected a whole number from 1 on", name, found->dump());
    }
    ask.max_tokens = found->get<int64_t>();
  }
  return ask;
}

simulated::Request RequestOf(const EngineAsk& ask) {
  simulated::Request request;
  const std::string_view text = ask.text;
  for (size_t at = 0; at < text.size(); at += kBlockChars) {
    request.blocks.push_back(std::hash<std::string_view>()(text.substr(at, kBlockChars)));
  }
  request.input_tokens = static_cast<int64_t>(text.size()) * kCharTokens;
  request.output_tokens = ask.max_tokens;
  return request;
}

std::vector<uint32_t> TokensOf(const std::string& text) {
  std::vector<uint32_t> tokens;
  for (size_t at = 0; at < text.size(); at += 4) {
    uint32_t token = 0;
    for (size_t i = at; i < std::min(at + 4, text.size()); ++i) {
      token = token << 8 | static_cast<unsigned char>(text[i]);
    }
    tokens.push_back(token & 0x7fffffff);
  }
  return tokens;
}

}  // namespace cairn::compare
