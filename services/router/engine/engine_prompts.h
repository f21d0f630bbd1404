#pragma once
// What the router needs of a prompt that goes to an engine as it came: tokens, or text that stands
// for them, only to know who holds how much of it.

#include <functional>
#include <optional>
#include <vector>

#include "model/tokenizer.h"
#include "services/router/engine/router.h"
#include "services/router/registry/engine_namespace.h"

namespace cairn::router {

struct EnginePrompt {
  std::vector<worker::TokenId> tokens = {};  // Or about as many pieces of text.
  EngineNamespace space = {};                // In which its keys are.
};

// Thread-safe.
class EnginePrompts {
 public:
  using Later = std::function<void(EnginePrompt)>;
  virtual ~EnginePrompts() = default;
  // The prompt; or nullopt, and `later` gets it soon, on another thread. Never fails: what cannot
  // have tokens has text. `request` must live until then.
  virtual std::optional<EnginePrompt> Read(const GenerateRequest& request, Later later) = 0;
  // Read always has the prompt, and neither tokenises nor waits: any thread may call it.
  virtual bool at_once() const { return false; }
};

}  // namespace cairn::router
