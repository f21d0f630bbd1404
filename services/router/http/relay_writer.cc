#include "services/router/http/relay_writer.h"

#include <algorithm>
#include <utility>

#include "services/router/http/api_answer.h"
#include "services/router/http/api_error.h"
#include "services/router/http/request_names.h"

namespace cairn::router {

RelayWriter::RelayWriter(Route route, RequestNames names,
                         std::shared_ptr<http::Responder> responder,
                         std::shared_ptr<ApiCounters> counters)
    : route_(route),
      names_(std::move(names)),
      responder_(std::move(responder)),
      counters_(std::move(counters)) {}

RelayWriter::~RelayWriter() {
  if (streaming_) counters_->StreamEnded(true);
}

void RelayWriter::OnRawHead(const RawHead& head) {
  status_ = head.status;
  http::Response response{.status = head.status, .content_type = head.content_type};
  for (const RawHeader& header : head.headers) {
    response.headers.push_back({header.name, header.value});
  }
  const bool named = std::ranges::any_of(head.headers, [](const RawHeader& header) {
    return http::EqualNames(header.name, "x-request-id");
  });
  if (!named) response.headers.push_back({"x-request-id", names_.id});
  if (!head.stream) {
    whole_ = std::move(response);
    return;
  }
  streaming_ = true;
  counters_->StreamBegan(route_);
  responder_->BeginStream(std::move(response));
}

void RelayWriter::OnRawBytes(std::string_view bytes) {
  if (streaming_) {
    responder_->Write(bytes);
  } else {
    whole_.body += bytes;
  }
}

int RelayWriter::HttpStatus(const GenerateError* error) const {
  // A stream that has begun keeps its status. A whole answer that broke is not sent.
  return error == nullptr || streaming_ ? status_ : FromRouter(*error).status;
}

void RelayWriter::OnDone(const GenerateSummary&) {
  LogEnd(names_, route_, status_,
         status_ < 400 ? "" : fmt::format("the engine answered with HTTP status {}", status_));
  if (streaming_) return EndStream(false);
  counters_->Answered(route_, whole_.status);
  responder_->Send(std::move(whole_));
}

void RelayWriter::OnError(const GenerateError& error) {
  const ApiError answer = FromRouter(error);
  LogError(names_, route_, answer.status, error);
  if (streaming_) {
    // As in AnswerWriter: no "[DONE]" follows.
    responder_->Write(EventWriter::Error(answer));
    return EndStream(true);
  }
  http::Response response = ErrorResponse(answer);
  response.headers.push_back({"x-request-id", names_.id});
  counters_->Answered(route_, response.status);
  responder_->Send(std::move(response));
}

void RelayWriter::EndStream(bool failed) {
  streaming_ = false;
  responder_->End();
  counters_->StreamEnded(failed);
}

}  // namespace cairn::router
