#include "services/router/http/api_answer.h"

#include <nlohmann/json.hpp>

namespace cairn::router {
namespace {

using Json = nlohmann::json;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The API knows two ends of an answer. A deadline is a limit of its length, too.
std::string_view ReasonOf(const GenerateSummary& summary) {
  return summary.finish_reason == "stop" ? "stop" : "length";
}

Json Usage(const GenerateSummary& summary) {
  return {{"prompt_tokens", summary.prompt_tokens},
          {"completion_tokens", summary.completion_tokens},
          {"total_tokens", uint64_t{summary.prompt_tokens} + summary.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", summary.cached_tokens}}}};
}

Json ModelJson(const ServedModel& model, int64_t created) {
  if (!model.object.empty()) return Json::parse(model.object, nullptr, /*allow_exceptions=*/false);
  return {{"id", model.id},
          {"object", "model"},
          {"created", created},
          {"owned_by", "cairn"},
          {"max_model_len", model.context_tokens}};
}

}  // namespace

std::string RenderAnswer(const AnswerHead& head, std::string_view text,
                         const GenerateSummary& summary) {
  Json choice = {{"index", 0}, {"finish_reason", ReasonOf(summary)}, {"logprobs", nullptr}};
  if (head.endpoint == Endpoint::kChat) {
    choice["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
  } else {
    choice["text"] = text;
  }
  return Dump({{"id", head.id},
               {"object", head.endpoint == Endpoint::kChat ? "chat.completion" : "text_completion"},
               {"created", head.created},
               {"model", head.model},
               {"choices", Json::array({std::move(choice)})},
               {"usage", Usage(summary)}});
}

std::string RenderModels(const std::vector<ServedModel>& models, int64_t created) {
  Json data = Json::array();
  for (const ServedModel& model : models) data.push_back(ModelJson(model, created));
  return Dump({{"object", "list"}, {"data", std::move(data)}});
}

std::string RenderModel(const ServedModel& model, int64_t created) {
  return Dump(ModelJson(model, created));
}

EventWriter::EventWriter(const AnswerHead& head, bool usage)
    : chat_(head.endpoint == Endpoint::kChat),
      usage_(usage),
      prefix_(fmt::format(R"(data: {{"id":{},"object":"{}","created":{},"model":{},"choices":[)",
                          Dump(head.id), chat_ ? "chat.completion.chunk" : "text_completion",
                          head.created, Dump(head.model))) {}

std::string EventWriter::Choice(std::string_view choice) const {
  return fmt::format("{}{}]{}}}\n\n", prefix_, choice, usage_ ? R"(,"usage":null)" : "");
}

std::string EventWriter::Start() const {
  if (!chat_) return {};
  return Choice(R"({"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null})");
}

std::string EventWriter::Text(std::string_view text) const {
  const std::string quoted = Dump(text);
  if (!chat_) {
    return Choice(
        fmt::format(R"({{"index":0,"text":{},"logprobs":null,"finish_reason":null}})", quoted));
  }
  return Choice(
      fmt::format(R"({{"index":0,"delta":{{"content":{}}},"finish_reason":null}})", quoted));
}

std::string EventWriter::Finish(const GenerateSummary& summary) const {
  const std::string_view reason = ReasonOf(summary);
  std::string events =
      chat_ ? Choice(fmt::format(R"({{"index":0,"delta":{{}},"finish_reason":"{}"}})", reason))
            : Choice(fmt::format(R"({{"index":0,"text":"","logprobs":null,"finish_reason":"{}"}})",
                                 reason));
  if (usage_) events += fmt::format("{}],\"usage\":{}}}\n\n", prefix_, Dump(Usage(summary)));
  return events + "data: [DONE]\n\n";
}

std::string EventWriter::Error(const ApiError& error) {
  return "data: " + RenderError(error) + "\n\n";
}

}  // namespace cairn::router
