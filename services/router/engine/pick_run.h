#pragma once
// A decision for a caller that sends the request itself, and says when it has ended.

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "services/router/engine/prompt_work.h"
#include "services/router/engine/router_engine.h"

namespace cairn::router {

// Lives until it has answered: what works for it holds it. One thread at a time works on it.
class PickRun final : public std::enable_shared_from_this<PickRun> {
 public:
  PickRun(RouterEngine* engine, PickAsk ask, Gate::Pass pass, Router::PickDone done)
      : engine_(engine), ask_(std::move(ask)), pass_(std::move(pass)), done_(std::move(done)) {}

  // Any thread. Its caller holds it.
  void Begin();
  // It cannot be prepared.
  void Refuse(const char* why);

 private:
  void Decide();
  void Fail(GenerateError error);

  RouterEngine* const engine_;
  PickAsk ask_;
  Gate::Pass pass_;
  const Router::PickDone done_;
  PreparedPrompt prompt_;
};

}  // namespace cairn::router
