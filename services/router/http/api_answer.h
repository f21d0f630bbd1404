#pragma once
// The JSON of answers: whole ones, pieces of a stream, lists of models.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "services/router/engine/router.h"
#include "services/router/http/api_request.h"

namespace cairn::router {

// The fields that all pieces of one answer share.
struct AnswerHead {
  Endpoint endpoint = Endpoint::kChat;
  std::string id;
  int64_t created = 0;  // Seconds since 1970.
  std::string model;
};

std::string RenderAnswer(const AnswerHead& head, std::string_view text,
                         const GenerateSummary& summary);
std::string RenderModels(const std::vector<ServedModel>& models, int64_t created);
std::string RenderModel(const ServedModel& model, int64_t created);

// The events of one stream. Not thread-safe.
class EventWriter {
 public:
  // With `usage`, all events but the last have "usage": null, as OpenAI's have.
  EventWriter(const AnswerHead& head, bool usage);

  // The event that comes first in a chat. Empty for completions.
  std::string Start() const;
  std::string Text(std::string_view text) const;
  // The reason, the usage if it was asked for, and the end of the stream.
  std::string Finish(const GenerateSummary& summary) const;

  static std::string Error(const ApiError& error);

 private:
  std::string Choice(std::string_view choice) const;

  const bool chat_;
  const bool usage_;
  std::string prefix_;  // The beginning of each event, up to the choices.
};

}  // namespace cairn::router
