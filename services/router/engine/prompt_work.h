#pragma once
// One prompt on its way to the tokens that a decision needs: checked, and made to tokens in steps,
// between those of other requests.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "common/tenants/fair_queue.h"
#include "services/router/engine/engine_prompts.h"
#include "services/router/engine/prompt_encoder.h"
#include "services/router/engine/run_services.h"

namespace cairn::router {

struct PreparedPrompt {
  std::vector<model::TokenId> tokens = {};
  // The namespace in which its keys are. nullopt: each worker's own.
  std::optional<EngineNamespace> space = {};
  bool exact = true;  // False: text stands for the tokens.
};

// One thread at a time.
class PromptWork final : public FairQueue::Work {
 public:
  // Gets the prompt or why there is none, once. `elsewhere`: on a thread that must not do more than
  // to take it.
  using Done =
      std::function<void(std::variant<PreparedPrompt, GenerateError> prompt, bool elsewhere)>;
  // True: nobody wants the prompt any more. Any thread.
  using Gone = std::function<bool()>;

  // `services` must outlive it, and `request` too, which lives as long as `done`.
  PromptWork(RunServices& services, GenerateRequest* request, Gone gone, Done done);

  uint64_t Step(uint64_t bytes) override;
  bool is_long() const override { return services_.IsLong(*request_); }
  // Instead of Step: it is not done at all.
  void Refuse(const GenerateError& error) { Finish(error); }

 private:
  void Finish(std::variant<PreparedPrompt, GenerateError> prompt);
  // The tokens are there, or must come from elsewhere.
  void EndOwn(std::optional<Result<std::vector<model::TokenId>>> own);

  RunServices& services_;
  GenerateRequest* const request_;
  const Gone gone_;
  Done done_;
  const uint64_t prompt_bytes_;
  bool begun_ = false;
  std::unique_ptr<PromptEncoding> encoding_;  // nullptr: nothing is tokenised here.
};

// Checks a request, and makes tokens of its prompt between those of other requests, or at once if
// that costs nothing. The arguments are PromptWork's. `done` may be called before this has
// returned.
void Prepare(RunServices& services, GenerateRequest* request, PromptWork::Gone gone,
             PromptWork::Done done);

}  // namespace cairn::router
