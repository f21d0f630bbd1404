// Any bytes as the body of a request for an engine: an error that names its field, or the same
// bytes to pass on. A body that the router's own parser takes is taken here too.
//
// First byte: of completions or of a chat. The rest is the body.

#include "services/router/http/relay_request.h"
#include "services/router/relay/prompt_reader.h"
#include "tests/fuzz/input.h"

namespace {

using cairn::fuzz::Expect;
using namespace cairn::router;

}  // namespace

CAIRN_FUZZ_ENTRY(relay_request)(const uint8_t* data, size_t size) {
  cairn::fuzz::Input input(data, size);
  const Endpoint endpoint = input.U8() % 2 == 0 ? Endpoint::kChat : Endpoint::kCompletions;
  const std::string body(input.Rest());
  const auto parsed = ParseRelayRequest(endpoint, {}, body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    Expect(error->status == 400 && !error->message.empty());
    Expect(std::holds_alternative<ApiError>(ParseApiRequest(endpoint, body)));
    RenderError(*error);
    return 0;
  }
  const GenerateRequest& request = std::get<ApiRequest>(parsed).generate;
  Expect(*request.raw->body == body);
  if (std::holds_alternative<std::vector<cairn::model::TokenId>>(request.prompt)) return 0;
  const std::string text = TextOf(request);
  Expect(PackText(text).size() == (text.size() + 3) / 4);
  Expect(!TokenizeQuestion(request).empty());
  return 0;
}
