#include "services/router/http/answer_writer.h"

#include <utility>

#include "services/router/http/request_names.h"

namespace cairn::router {
namespace {

constexpr int kOk = 200;

}  // namespace

AnswerWriter::AnswerWriter(Route route, AnswerHead head, const ApiRequest& request,
                           RequestNames names, std::shared_ptr<http::Responder> responder,
                           std::shared_ptr<ApiCounters> counters)
    : route_(route),
      head_(std::move(head)),
      names_(std::move(names)),
      responder_(std::move(responder)),
      counters_(std::move(counters)) {
  if (request.stream) events_.emplace(head_, request.include_usage);
}

AnswerWriter::~AnswerWriter() {
  if (streaming_) counters_->StreamEnded(true);
}

void AnswerWriter::OnToken(model::TokenId, std::string_view text) {
  if (!events_.has_value()) {
    text_ += text;
    return;
  }
  std::string events = Begin();
  if (!text.empty()) events += events_->Text(text);
  if (!events.empty()) responder_->Write(events);
}

int AnswerWriter::HttpStatus(const GenerateError* error) const {
  return streaming_ || error == nullptr ? kOk : FromRouter(*error).status;
}

void AnswerWriter::OnDone(const GenerateSummary& summary) {
  LogEnd(names_, route_, kOk, "");
  if (!events_.has_value()) {
    http::Response response = {.body = RenderAnswer(head_, text_ + summary.text_tail, summary)};
    response.body += '\n';
    response.headers.push_back({"x-request-id", head_.id});
    counters_->Answered(route_, response.status);
    responder_->Send(std::move(response));
    return;
  }
  std::string events = Begin();
  if (!summary.text_tail.empty()) events += events_->Text(summary.text_tail);
  responder_->Write(events + events_->Finish(summary));
  EndStream(false);
}

void AnswerWriter::OnError(const GenerateError& error) {
  const ApiError answer = FromRouter(error);
  LogError(names_, route_, answer.status, error);
  if (streaming_) {
    // No "[DONE]": a client that does not know error events must not take this for a whole answer.
    responder_->Write(EventWriter::Error(answer));
    EndStream(true);
    return;
  }
  http::Response response = ErrorResponse(answer);
  response.headers.push_back({"x-request-id", head_.id});
  counters_->Answered(route_, response.status);
  responder_->Send(std::move(response));
}

// Until the first token an error has a status code of its own. So nothing is sent before.
std::string AnswerWriter::Begin() {
  if (streaming_) return {};
  streaming_ = true;
  counters_->StreamBegan(route_);
  responder_->BeginStream({.content_type = "text/event-stream; charset=utf-8",
                           .headers = {{"Cache-Control", "no-cache"}, {"x-request-id", head_.id}}});
  return events_->Start();
}

void AnswerWriter::EndStream(bool failed) {
  streaming_ = false;
  responder_->End();
  counters_->StreamEnded(failed);
}

}  // namespace cairn::router
