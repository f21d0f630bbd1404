#pragma once
// A decision for a caller that sends the request itself, and says when it has ended.

#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "common/lifecycle/lifecycle.h"
#include "services/router/engine/prompt_work.h"
#include "services/router/engine/run_services.h"

namespace cairn::router {

// Lives until it has answered: what works for it holds it. One thread at a time works on it.
class PickRun final : public std::enable_shared_from_this<PickRun> {
 public:
  PickRun(RunServices& services, PickAsk ask, Gate::Pass pass, Router::PickDone done)
      : services_(services), ask_(std::move(ask)), pass_(std::move(pass)), done_(std::move(done)) {}

  // Any thread. Its caller holds it.
  void Begin();
  // It cannot be prepared.
  void Refuse(const Status& why);

 private:
  struct Picked {
    Pick pick;
    RegisteredWorker worker;
    uint32_t held_tokens = 0;  // Tokens of the prompt that the worker holds.
    uint64_t ticket = 0;       // The dispatcher's ticket, if it is followed.
  };
  void Decide();
  // Where the request with these keys goes.
  std::variant<Picked, GenerateError> Choose(PromptKeys* keys);
  void Fail(GenerateError error);

  RunServices& services_;
  PickAsk ask_;
  Gate::Pass pass_;
  const Router::PickDone done_;
  PreparedPrompt prompt_;
};

}  // namespace cairn::router
