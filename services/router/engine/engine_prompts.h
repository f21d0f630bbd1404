#pragma once
// The parts of a prompt that the router needs if the prompt goes to an engine as it came: tokens,
// or text that stands for them, only to know who holds how much of it.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "model/tokenizer.h"
#include "services/router/engine/prompt_encoder.h"
#include "services/router/engine/router.h"
#include "services/router/registry/engine_namespace.h"

namespace cairn::router {

struct EnginePrompt {
  std::vector<model::TokenId> tokens = {};  // Or about as many pieces of text.
  EngineNamespace space = {};               // The namespace in which its keys are.
  bool exact = true;                        // False: text stands for the tokens.
};

// Thread-safe.
class EnginePrompts {
 public:
  using Later = std::function<void(EnginePrompt)>;
  virtual ~EnginePrompts() = default;
  // Makes tokens of the prompt here, in steps. nullptr: nothing is made here. OUT_OF_RANGE is the
  // last word, and after any other error Read finds another way. `context_tokens`: most tokens of
  // prompt and answer that any engine takes; 0: not known. The request must outlive it.
  virtual std::unique_ptr<PromptEncoding> Begin(const GenerateRequest& /*request*/,
                                                uint32_t /*context_tokens*/) {
    return nullptr;
  }
  // The prompt; or nullopt, and `later` gets it soon, on another thread. Never fails: what cannot
  // have tokens has text. `own`: what Begin's work has made. `request` must live until then.
  virtual std::optional<EnginePrompt> Read(const GenerateRequest& request,
                                           std::optional<std::vector<model::TokenId>> own,
                                           Later later) = 0;
  // Read always has the prompt, and neither tokenises nor waits: any thread may call it.
  virtual bool at_once() const { return false; }
};

}  // namespace cairn::router
