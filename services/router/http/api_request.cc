#include "services/router/http/api_request.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/request_limits.h"
#include "services/router/http/json_fields.h"

namespace cairn::router {
namespace {

using Json = nlohmann::json;

using model::kMaxMessages;
using model::kMaxStopBytes;
using model::kMaxStops;

// The number of tokens that OpenAI's API generates where max_tokens is absent.
constexpr uint32_t kDefaultCompletionTokens = 16;
// A time to live up to this says that the conversation goes on within minutes.
constexpr double kSoonSeconds = 3600;

// A field that the API has and our workers have not, with the values that ask for nothing.
struct Unsupported {
  const char* name;
  std::vector<Json> off;
};

const std::vector<Unsupported>& AllUnsupported() {
  static const auto* const all = new std::vector<Unsupported>{
      {"audio", {}},
      {"best_of", {1}},
      {"echo", {false}},
      {"frequency_penalty", {0}},
      {"function_call", {"none"}},
      {"functions", {Json::array()}},
      {"logit_bias", {Json::object()}},
      {"logprobs", {false}},
      {"modalities", {Json::array({"text"}), Json::array()}},
      {"moderation", {}},
      {"n", {1}},
      {"prediction", {}},
      {"presence_penalty", {0}},
      {"reasoning_effort", {"none"}},
      {"repetition_penalty", {1}},
      {"response_format", {Json::object({{"type", "text"}})}},
      {"service_tier", {"auto", "default"}},
      {"store", {false}},
      {"suffix", {""}},
      // Without tools there is nothing to choose from.
      {"tool_choice", {"none", "auto"}},
      {"tools", {Json::array()}},
      {"top_logprobs", {0}},
      {"verbosity", {"medium"}},
      {"web_search_options", {}},
  };
  return *all;
}

void RefuseUnsupported(Fields& fields) {
  for (const Unsupported& field : AllUnsupported()) {
    const Json* const value = fields.Find(field.name);
    if (value == nullptr || std::ranges::find(field.off, *value) != field.off.end()) continue;
    std::string message = fmt::format("field '{}': got {}, which this server does not support; ",
                                      field.name, Shown(*value));
    message += field.off.empty()
                   ? "expected no such field"
                   : fmt::format("expected {} or no such field", field.off.front().dump());
    fields.FailWith(field.name, std::move(message), "unsupported_parameter");
  }
}

// The part has text for us; or the error says why not.
const std::string* TextOfPart(Fields& fields, const std::string& where, const Json& part) {
  if (!part.is_object()) {
    fields.Fail(where, part, "an object such as {\"type\": \"text\", \"text\": \"...\"}");
    return nullptr;
  }
  const auto type = part.find("type");
  if (type == part.end() || *type != "text") {
    fields.Fail(where + ".type", type == part.end() ? Json() : *type,
                "\"text\": the model reads nothing else", "unsupported_value");
    return nullptr;
  }
  const auto text = part.find("text");
  if (text == part.end() || !text->is_string()) {
    fields.Fail(where + ".text", text == part.end() ? Json() : *text, "text");
    return nullptr;
  }
  return text->get_ptr<const std::string*>();
}

struct Breakpoints {
  bool any = false;
};

std::string ContentOf(Fields& fields, const std::string& where, const Json& message,
                      Breakpoints* breakpoints) {
  const auto content = message.find("content");
  if (content != message.end() && content->is_string()) return content->get<std::string>();
  // An answer that has no text: an agent's turn that was cut off, for example.
  const bool is_null = content == message.end() || content->is_null();
  if (is_null && message["role"] == "assistant") return {};
  if (content == message.end() || !content->is_array() || content->empty()) {
    fields.Fail(where, content == message.end() ? Json() : *content,
                "text, or a list of parts of type text");
    return {};
  }
  std::string all;
  for (size_t i = 0; i < content->size(); ++i) {
    const std::string* const text =
        TextOfPart(fields, fmt::format("{}[{}]", where, i), (*content)[i]);
    if (text == nullptr) return {};
    all += *text;
    const auto mark = (*content)[i].find("prompt_cache_breakpoint");
    breakpoints->any |= mark != (*content)[i].end() && !mark->is_null();
  }
  return all;
}

std::optional<model::ChatMessage> MessageOf(Fields& fields, const std::string& where,
                                            const Json& message, Breakpoints* breakpoints) {
  if (!message.is_object()) {
    fields.Fail(where, message, "an object with role and content");
    return std::nullopt;
  }
  const auto role = message.find("role");
  std::string name;
  if (role != message.end() && role->is_string()) name = role->get<std::string>();
  if (name == "developer") name = "system";  // The newer name of the same.
  if (name != "system" && name != "user" && name != "assistant") {
    fields.Fail(where + ".role", role == message.end() ? Json() : *role,
                "\"system\", \"developer\", \"user\" or \"assistant\"");
    return std::nullopt;
  }
  for (const char* const calls : {"tool_calls", "function_call", "audio"}) {
    const auto found = message.find(calls);
    // Clients send the assistant's last message back with all fields that they know. An empty list
    // has no calls.
    if (found == message.end() || found->is_null() || *found == Json::array()) continue;
    fields.Fail(fmt::format("{}.{}", where, calls), *found, "no such field: it is not supported",
                "unsupported_parameter");
    return std::nullopt;
  }
  return model::ChatMessage{std::move(name),
                            ContentOf(fields, where + ".content", message, breakpoints)};
}

std::vector<model::ChatMessage> MessagesOf(Fields& fields, Breakpoints* breakpoints) {
  std::vector<model::ChatMessage> messages;
  const Json* const all = fields.Find("messages");
  if (all == nullptr || !all->is_array() || all->empty() || all->size() > kMaxMessages) {
    fields.Fail("messages", all == nullptr ? Json() : *all,
                fmt::format("a list of 1 to {} messages", kMaxMessages));
    return messages;
  }
  messages.reserve(all->size());
  for (size_t i = 0; i < all->size(); ++i) {
    auto message = MessageOf(fields, fmt::format("messages[{}]", i), (*all)[i], breakpoints);
    if (!message.has_value()) break;
    messages.push_back(*std::move(message));
  }
  return messages;
}

using Prompt = decltype(GenerateRequest::prompt);

// A text or a list of ids, or a list of one of them.
Prompt PromptOf(Fields& fields) {
  const Json* prompt = fields.Find("prompt");
  constexpr std::string_view kExpected = "one text, or one list of token ids";
  if (prompt == nullptr) {
    fields.Fail("prompt", Json(), kExpected, "missing_required_parameter");
    return std::string();
  }
  if (prompt->is_array() && prompt->size() == 1 &&
      (prompt->front().is_string() || prompt->front().is_array())) {
    prompt = &prompt->front();
  }
  if (prompt->is_string()) return prompt->get<std::string>();
  if (prompt->is_array() && !prompt->empty() && prompt->front().is_number()) {
    return ReadTokenIds(fields, "prompt", *prompt);
  }
  fields.Fail("prompt", *prompt, kExpected);
  return std::string();
}

std::vector<std::string> StopsOf(Fields& fields) {
  const Json* const value = fields.Find("stop");
  if (value == nullptr) return {};
  std::vector<std::string> stops;
  const auto add = [&](const std::string& where, const Json& stop) {
    if (stop.is_string()) stops.push_back(stop.get<std::string>());
    if (!stop.is_string() || stops.back().empty() || stops.back().size() > kMaxStopBytes) {
      fields.Fail(where, stop, fmt::format("text of 1 to {} bytes", kMaxStopBytes));
    }
  };
  if (!value->is_array()) {
    add("stop", *value);
    return stops;
  }
  if (value->size() > kMaxStops) {
    fields.Fail("stop", *value, fmt::format("at most {} texts", kMaxStops));
    return stops;
  }
  for (size_t i = 0; i < value->size(); ++i) add(fmt::format("stop[{}]", i), (*value)[i]);
  return stops;
}

void ReadSampling(Fields& fields, ApiRequest& request) {
  GenerateRequest& generate = request.generate;
  generate.temperature = fields.Real("temperature", 0, 2).value_or(1);
  const std::optional<double> top_p = fields.Real("top_p", 0, 1);
  // Our 0 means off, as 1 does. The API's 0 leaves the likeliest token alone.
  generate.top_p = top_p == 1 ? 0 : top_p.value_or(0);
  const auto top_k = fields.Integer("top_k", -1, std::numeric_limits<int32_t>::max()).value_or(0);
  generate.top_k = top_p == 0.0 ? 1 : static_cast<uint32_t>(std::max<int64_t>(0, top_k));
  const auto seed = fields.Integer("seed", std::numeric_limits<int64_t>::min(),
                                   std::numeric_limits<int64_t>::max());
  request.has_seed = seed.has_value();
  generate.seed = static_cast<uint64_t>(seed.value_or(0));
  generate.stop = StopsOf(fields);
  generate.ignore_eos = fields.Bool("ignore_eos");
}

void ReadLength(Endpoint endpoint, Fields& fields, GenerateRequest& generate) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const auto older = fields.Integer("max_tokens", 1, kMost);
  const auto newer = fields.Integer("max_completion_tokens", 1, kMost);
  if (older.has_value() && newer.has_value() && *older != *newer) {
    fields.Fail("max_completion_tokens", Json(*newer), "the same as max_tokens, or one of the two");
  }
  if (newer.has_value() || older.has_value()) {
    generate.max_tokens = static_cast<uint32_t>(newer.has_value() ? *newer : *older);
    if (!older.has_value()) generate.max_tokens_name = "max_completion_tokens";
  } else if (endpoint == Endpoint::kCompletions) {
    generate.max_tokens = kDefaultCompletionTokens;
  }
}

void ReadStream(Fields& fields, ApiRequest& request) {
  request.stream = fields.Bool("stream");
  const Json* const options = fields.Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) return fields.Fail("stream_options", *options, "an object");
  const auto usage = options->find("include_usage");
  const bool asks = usage != options->end() && !usage->is_null() && *usage != false;
  if (!request.stream && asks) {
    return fields.Fail("stream_options", *options, "it only together with stream: true");
  }
  if (usage == options->end() || usage->is_null()) return;
  if (!usage->is_boolean()) {
    return fields.Fail("stream_options.include_usage", *usage, "true or false");
  }
  request.include_usage = usage->get<bool>();
}

// "30m", "24h", "90s".
std::optional<double> SecondsOf(const Json& value) {
  if (!value.is_string()) return std::nullopt;
  const auto& text = *value.get_ptr<const std::string*>();
  uint32_t number = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (ec != std::errc() || end + 1 != text.data() + text.size()) return std::nullopt;
  switch (*end) {
    case 's':
      return number;
    case 'm':
      return 60.0 * number;
    case 'h':
      return 3600.0 * number;
    case 'd':
      return 86400.0 * number;
    default:
      return std::nullopt;
  }
}

NextUse NextOfTtl(double seconds) {
  return seconds <= kSoonSeconds ? NextUse::kSoon : NextUse::kLater;
}

// The conversation's future, as OpenAI's cache fields tell it.
NextUse NextOf(Fields& fields, bool has_breakpoints) {
  NextUse next = has_breakpoints ? NextUse::kSoon : NextUse::kUnknown;
  fields.TextOnly("prompt_cache_key");
  if (const Json* const key = fields.Find("prompt_cache_key"); key != nullptr && *key != "") {
    next = NextUse::kSoon;
  }
  if (const Json* const kept = fields.Find("prompt_cache_retention"); kept != nullptr) {
    if (*kept != "24h" && *kept != "in_memory" && *kept != "in-memory") {
      fields.Fail("prompt_cache_retention", *kept, "\"in_memory\" or \"24h\"");
    }
    if (*kept == "24h") next = NextUse::kLater;
  }
  const Json* const options = fields.Find("prompt_cache_options");
  if (options == nullptr) return next;
  if (!options->is_object()) {
    fields.Fail("prompt_cache_options", *options, "an object");
    return next;
  }
  if (const auto ttl = options->find("ttl"); ttl != options->end() && !ttl->is_null()) {
    const std::optional<double> seconds = SecondsOf(*ttl);
    if (!seconds.has_value()) {
      fields.Fail("prompt_cache_options.ttl", *ttl, "a time such as \"30m\"");
    } else {
      next = NextOfTtl(*seconds);
    }
  }
  const auto mode = options->find("mode");
  if (mode == options->end() || mode->is_null() || *mode == "implicit") return next;
  if (*mode != "explicit") {
    fields.Fail("prompt_cache_options.mode", *mode, "\"implicit\" or \"explicit\"");
  }
  // Explicit without a mark: the caller says that nothing of it is used again.
  return has_breakpoints ? next : NextUse::kNever;
}

void ReadModel(Fields& fields, GenerateRequest& generate) {
  const Json* const model = fields.Find("model");
  if (model == nullptr) return;
  if (!model->is_string() || *model == "") return fields.Fail("model", *model, "a model's id");
  generate.model = model->get<std::string>();
}

}  // namespace

std::optional<ApiError> Charge(ByteShare share, GenerateRequest* request) {
  const Status room = share.Charge(PromptBytes(*request));
  if (!room.ok()) return NoRoomForBody(room);
  request->share = std::move(share);
  return std::nullopt;
}

std::variant<ApiRequest, ApiError> ParseApiRequest(Endpoint endpoint, std::string_view body) {
  const auto parsed = ParseBody(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return *error;
  const Json& json = std::get<Json>(parsed);
  Fields fields(json);
  ApiRequest request;
  Breakpoints breakpoints;
  ReadModel(fields, request.generate);
  if (endpoint == Endpoint::kChat) {
    request.generate.prompt = MessagesOf(fields, &breakpoints);
  } else {
    request.generate.prompt = PromptOf(fields);
  }
  RefuseUnsupported(fields);
  ReadLength(endpoint, fields, request.generate);
  ReadSampling(fields, request);
  ReadStream(fields, request);
  request.generate.next = NextOf(fields, breakpoints.any);
  fields.TextOnly("user");
  fields.TextOnly("safety_identifier");
  if (fields.failed()) return fields.error();
  return request;
}

}  // namespace cairn::router
