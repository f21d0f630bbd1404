#include "services/router/engine/prompt_work.h"

#include <algorithm>
#include <utility>

#include "services/router/engine/check_request.h"

namespace cairn::router {
namespace {

// The longest token of an engine whose tokens are not known. Vocabularies have longer ones, of
// spaces, but no text that anybody means is made of them.
constexpr uint64_t kMostTokenBytes = 64;

// Errors of a request that are found before anything is made of it.
std::optional<GenerateError> CheckBefore(const RunServices& services,
                                         const GenerateRequest& request) {
  if (auto error = services.CheckModel(request.model)) return error;
  if (auto error = CheckRequest(request, services.parts.clock->Now())) return error;
  if (services.parts.prompts == nullptr) {
    if (request.max_tokens > services.options.context_tokens) {
      return FieldError(std::string(request.max_tokens_name),
                        fmt::format("got {}, expected 1 to {}", *request.max_tokens,
                                    services.options.context_tokens));
    }
    return std::nullopt;
  }
  if (const auto* ids = std::get_if<std::vector<model::TokenId>>(&request.prompt)) {
    return services.CheckFits(request, ids->size(), /*exact=*/true);
  }
  // Tools and images stand in the prompt as text that no engine makes tokens of as it is.
  if (request.raw != nullptr && !request.raw->plain) return std::nullopt;
  const uint64_t context = services.LongestContextOf(request.model);
  const uint64_t bytes = PromptBytes(request);
  if (context == 0 || bytes <= context * kMostTokenBytes) return std::nullopt;
  return PromptError(request, Errorf(StatusCode::kOutOfRange,
                                     "got {} bytes, expected at most {} for a context of {} tokens",
                                     bytes, context * kMostTokenBytes, context));
}

}  // namespace

PromptWork::PromptWork(RunServices& services, GenerateRequest* request, Gone gone, Done done)
    : services_(services),
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
  const RouterParts& parts = services_.parts;
  if (!std::exchange(begun_, true)) {
    encoding_ = parts.prompts != nullptr
                    ? parts.prompts->Begin(*request_, services_.LongestContextOf(request_->model))
                    : std::make_unique<PromptEncoding>(parts.encoder, *request_,
                                                       services_.options.context_tokens);
  }
  if (encoding_ == nullptr) {
    EndOwn(std::nullopt);
    return 0;
  }
  const bool done = encoding_->Step(bytes);
  if (!done) {
    // One long word takes many times its own bytes.
    const Status room = request_->share.Charge(prompt_bytes_ + encoding_->memory());
    if (room.ok()) return std::max<uint64_t>(1, encoding_->left());
    Finish(NoRoomFor(fmt::format("got {} bytes to make tokens of", prompt_bytes_), room));
    return 0;
  }
  auto own = encoding_->Take();
  encoding_.reset();
  EndOwn(std::move(own));
  return 0;
}

void PromptWork::EndOwn(std::optional<Result<std::vector<model::TokenId>>> own) {
  EnginePrompts* const prompts = services_.parts.prompts;
  if (own && !own->ok() &&
      (prompts == nullptr || own->status().code() == StatusCode::kOutOfRange)) {
    return Finish(PromptError(*request_, own->status()));
  }
  if (prompts == nullptr) {
    PreparedPrompt prompt = {.tokens = **std::move(own), .space = {}, .exact = true};
    if (auto error = services_.CheckFits(*request_, prompt.tokens.size(), /*exact=*/true)) {
      return Finish(*std::move(error));
    }
    return Finish(std::move(prompt));
  }
  std::optional<std::vector<model::TokenId>> made;
  if (own && own->ok()) made = **std::move(own);
  const auto done = std::make_shared<Done>(std::move(done_));
  const auto take = [&services = services_, request = request_, done](EnginePrompt prompt,
                                                                      bool elsewhere) {
    if (auto error = services.CheckFits(*request, prompt.tokens.size(), prompt.exact)) {
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

void Prepare(RunServices& services, GenerateRequest* request, PromptWork::Gone gone,
             PromptWork::Done done) {
  if (auto error = CheckBefore(services, *request)) {
    return done(*std::move(error), /*elsewhere=*/false);
  }
  const uint64_t bytes = std::max<uint64_t>(1, PromptBytes(*request));
  auto own = std::make_unique<PromptWork>(services, request, std::move(gone), std::move(done));
  PromptWork& prompt = *own;
  if (services.parts.prompts != nullptr && services.parts.prompts->at_once()) {
    // Nothing is computed or waited for: waking another thread would take longer than the decision.
    while (prompt.Step(bytes) > 0) {
    }
    return;
  }
  std::unique_ptr<FairQueue::Work> work = std::move(own);
  const Status posted = services.queue.Post(request->tenant, bytes, work);
  if (posted.ok()) return;
  prompt.Refuse({.status = Annotate(posted, "too much text waits to be tokenised"),
                 .retry_after = kTryAgain});
}

}  // namespace cairn::router
