#include "services/router/engine/prompt_work.h"

#include <algorithm>
#include <utility>

#include "services/router/engine/check_request.h"

namespace cairn::router {

PromptWork::PromptWork(RouterEngine* engine, GenerateRequest* request, Gone gone, Done done)
    : engine_(engine),
      request_(request),
      gone_(std::move(gone)),
      done_(std::move(done)),
      prompt_bytes_(PromptBytes(*request)) {}

void PromptWork::Finish(std::variant<PreparedPrompt, GenerateError> prompt) {
  encoding_.reset();
  const Done done = std::exchange(done_, nullptr);
  done(std::move(prompt), /*elsewhere=*/false);
}

uint64_t PromptWork::Step(uint64_t bytes) {
  if (gone_ && gone_()) {
    Finish(GenerateError{.status = Errorf(StatusCode::kCancelled, "the request was cancelled")});
    return 0;
  }
  const RouterEngine::Parts& parts = engine_->parts_;
  if (!std::exchange(begun_, true)) {
    encoding_ = parts.prompts != nullptr
                    ? parts.prompts->Begin(*request_, engine_->LongestContext(request_->model))
                    : std::make_unique<PromptEncoding>(parts.encoder, *request_,
                                                       engine_->options_.context_tokens);
  }
  if (encoding_ == nullptr) {
    EndOwn(std::nullopt);
    return 0;
  }
  const bool done = encoding_->Step(bytes);
  // One long word takes many times its own bytes.
  if (!done && !request_->share.Resize(prompt_bytes_ + encoding_->memory())) {
    Finish(NoRoomFor(fmt::format("the work of making tokens of {} bytes", prompt_bytes_)));
    return 0;
  }
  if (!done) return std::max<uint64_t>(1, encoding_->left());
  auto own = encoding_->Take();
  encoding_.reset();
  EndOwn(std::move(own));
  return 0;
}

void PromptWork::EndOwn(std::optional<Result<std::vector<worker::TokenId>>> own) {
  EnginePrompts* const prompts = engine_->parts_.prompts;
  if (own && !own->ok() &&
      (prompts == nullptr || own->status().code() == StatusCode::kOutOfRange)) {
    return Finish(PromptError(*request_, own->status()));
  }
  if (prompts == nullptr) {
    PreparedPrompt prompt = {.tokens = **std::move(own), .space = {}, .exact = true};
    if (auto error = engine_->CheckFits(*request_, prompt.tokens.size(), /*exact=*/true)) {
      return Finish(*std::move(error));
    }
    return Finish(std::move(prompt));
  }
  std::optional<std::vector<worker::TokenId>> made;
  if (own && own->ok()) made = **std::move(own);
  const auto done = std::make_shared<Done>(std::move(done_));
  const auto take = [engine = engine_, request = request_, done](EnginePrompt prompt,
                                                                 bool elsewhere) {
    if (auto error = engine->CheckFits(*request, prompt.tokens.size(), prompt.exact)) {
      return (*done)(*std::move(error), elsewhere);
    }
    (*done)(
        PreparedPrompt{
            .tokens = std::move(prompt.tokens), .space = prompt.space, .exact = prompt.exact},
        elsewhere);
  };
  auto prompt = prompts->Read(*request_, std::move(made), [take](EnginePrompt later) {
    take(std::move(later), /*elsewhere=*/true);
  });
  if (prompt) take(*std::move(prompt), /*elsewhere=*/false);
}

}  // namespace cairn::router
