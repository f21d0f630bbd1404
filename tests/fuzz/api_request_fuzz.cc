// Any bytes as the body of a request to OpenAI's API: an error that names its field, or a request
// within the limits that the worker has.
//
// First byte: of completions or of a chat. The rest is the body.

#include <cmath>

#include "services/router/http/api_request.h"
#include "tests/fuzz/input.h"

namespace {

using cairn::fuzz::Expect;
using namespace cairn::router;

}  // namespace

CAIRN_FUZZ_ENTRY(api_request)(const uint8_t* data, size_t size) {
  cairn::fuzz::Input input(data, size);
  const Endpoint endpoint = input.U8() % 2 == 0 ? Endpoint::kChat : Endpoint::kCompletions;
  const std::string body(input.Rest());
  const auto parsed = ParseApiRequest(endpoint, body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    Expect(error->status == 400 && !error->message.empty());
    Expect(error->param.empty() || error->message.find(error->param) != std::string::npos);
    RenderError(*error);
    return 0;
  }
  const GenerateRequest& request = std::get<ApiRequest>(parsed).generate;
  Expect(request.temperature >= 0 && request.temperature <= 2);
  Expect(request.top_p >= 0 && request.top_p < 1);
  Expect(request.max_tokens.value_or(1) >= 1);
  Expect(endpoint == Endpoint::kChat || request.max_tokens.has_value());
  Expect(request.stop.size() <= 16);
  for (const std::string& stop : request.stop) Expect(!stop.empty() && stop.size() <= 256);
  if (const auto* ids = std::get_if<std::vector<cairn::model::TokenId>>(&request.prompt)) {
    for (const auto id : *ids) Expect(id >= 0);
  }
  if (const auto* chat = std::get_if<std::vector<cairn::model::ChatMessage>>(&request.prompt)) {
    Expect(endpoint == Endpoint::kChat && !chat->empty());
    for (const auto& message : *chat) {
      Expect(message.role == "system" || message.role == "user" || message.role == "assistant");
    }
  }
  return 0;
}
