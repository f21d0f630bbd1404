#include "benchmarks/compare/router/engine_answer.h"

#include <fmt/format.h>

#include <utility>

namespace cairn::compare {
namespace {

// A text of `count` tokens.
std::string Words(int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += " word";
  return text;
}

}  // namespace

EngineAnswer::EngineAnswer(const EngineAsk& ask, std::string id,
                           std::shared_ptr<http::Responder> responder)
    : chat_(ask.chat),
      stream_(ask.stream),
      include_usage_(ask.include_usage),
      text_bytes_(ask.text.size()),
      id_(std::move(id)),
      responder_(std::move(responder)) {}

std::string EngineAnswer::Head(const char* object) const {
  return fmt::format(R"("id":"{}","object":"{}","created":1700000000,"model":"{}")", id_, object,
                     kModelId);
}

std::string EngineAnswer::Chunk(int64_t count, bool last) const {
  const char* const reason = last ? R"("length")" : "null";
  if (chat_) {
    return fmt::format(
        R"({{{},"choices":[{{"index":0,"delta":{{"content":"{}"}},"finish_reason":{}}}]}})",
        Head("chat.completion.chunk"), Words(count), reason);
  }
  return fmt::format(R"({{{},"choices":[{{"index":0,"text":"{}","finish_reason":{}}}]}})",
                     Head("text_completion"), Words(count), reason);
}

std::string EngineAnswer::Usage(int64_t cached_tokens) const {
  const auto prompt = static_cast<int64_t>((text_bytes_ + 3) / 4);
  // In tokens of the text: a character stands for kCharTokens of the trace.
  const int64_t cached = cached_tokens / kCharTokens / 4;
  return fmt::format(R"("usage":{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},)"
                     R"("prompt_tokens_details":{{"cached_tokens":{}}}}})",
                     prompt, generated_, prompt + generated_, cached);
}

void EngineAnswer::Tokens(int64_t count) {
  if (stream_) {
    if (generated_ == 0) responder_->BeginStream({.content_type = "text/event-stream"});
    responder_->Write(fmt::format("data: {}\n\n", Chunk(count, false)));
  }
  generated_ += count;
}

void EngineAnswer::End(int64_t cached_tokens) {
  if (stream_) {
    std::string rest = fmt::format("data: {}\n\n", Chunk(0, true));
    if (include_usage_) {
      rest += fmt::format("data: {{{},\"choices\":[],{}}}\n\n",
                          Head(chat_ ? "chat.completion.chunk" : "text_completion"),
                          Usage(cached_tokens));
    }
    responder_->Write(rest + "data: [DONE]\n\n");
    responder_->End();
    return;
  }
  const std::string content =
      chat_ ? fmt::format(R"("message":{{"role":"assistant","content":"{}"}})", Words(generated_))
            : fmt::format(R"("text":"{}")", Words(generated_));
  responder_->Send(
      {.body = fmt::format(R"({{{},"choices":[{{"index":0,{},"finish_reason":"length"}}],{}}})",
                           Head(chat_ ? "chat.completion" : "text_completion"), content,
                           Usage(cached_tokens))});
}

}  // namespace cairn::compare
