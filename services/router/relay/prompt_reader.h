#pragma once
// The tokens of a prompt, for the decision alone: from a model's file, from an engine, or text that
// stands for them.
//
//   ids in the prompt ───────────────────────────────► tokens
//   a model's file that can render it ───────────────► tokens
//   an engine that answers POST /tokenize (setting) ─► tokens, or text if it fails
//   all else ────────────────────────────────────────► text, four bytes for each token
//
// Tokens of whole prompts that engines made are kept, in a bounded cache.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/http/client.h"
#include "common/memory/charged_string.h"
#include "services/router/engine/engine_prompts.h"
#include "services/router/engine/piece_cache.h"
#include "services/router/engine/prompt_encoder.h"
#include "services/router/registry/worker_registry.h"
#include "services/router/relay/key_file.h"

namespace cairn::router {

// Thread-safe.
class PromptReader final : public EnginePrompts {
 public:
  struct Options {
    bool tokenize = false;  // Ask engines for tokens.
    uint32_t block_tokens = 16;
    uint32_t text_block_bytes = 256;  // At least 4.
    size_t cache_bytes = 64 << 20;
    Duration patience = std::chrono::milliseconds(500);  // With an engine that says nothing.
    Duration longest = std::chrono::seconds(2);          // Until an engine has told all tokens.
    Duration pause = std::chrono::seconds(5);            // Without asking, after a failure.
  };
  // All of these must outlive it. `local`: nullptr, there is no model's file. `key`: nullptr,
  // engines need none.
  struct Parts {
    PromptEncoder* local = nullptr;
    http::Client* client = nullptr;
    KeyFile* key = nullptr;
    const WorkerRegistry* registry = nullptr;
    const Clock* clock = nullptr;
  };
  PromptReader(const Options& options, const Parts& parts);

  std::unique_ptr<PromptEncoding> Begin(const GenerateRequest& request,
                                        uint32_t context_tokens) override;
  std::optional<EnginePrompt> Read(const GenerateRequest& request,
                                   std::optional<std::vector<model::TokenId>> own,
                                   Later later) override;
  bool at_once() const override { return !options_.tokenize && parts_.local == nullptr; }

  struct Numbers {
    uint64_t from_tokens = 0;  // Prompts by what their keys are made of.
    uint64_t from_text = 0;
    uint64_t asked = 0;   // Questions to engines.
    uint64_t failed = 0;  // The questions that failed.
    uint64_t cache_bytes = 0;
  };
  Numbers numbers() const;

 private:
  EnginePrompt OfTokens(std::vector<model::TokenId> tokens);
  EnginePrompt OfText(const GenerateRequest& request);
  // False: there is no engine to ask now.
  bool Ask(const GenerateRequest& request, std::string question, Later later);

  const Options options_;
  const Parts parts_;
  const EngineNamespace tokens_space_;
  const EngineNamespace text_space_;
  PieceCache cache_;
  std::atomic<TimePoint> ask_after_;
  std::atomic<uint64_t> turn_{0};  // Engines are asked in turn.
  std::atomic<uint64_t> from_tokens_{0}, from_text_{0}, asked_{0}, failed_{0};
};

// Bytes in groups of four as numbers, the last one filled with zeros.
std::vector<model::TokenId> PackText(std::string_view text);
// The text that the keys of a prompt without tokens are made of. A conversation that goes on begins
// with the text that it had before.
std::string TextOf(const GenerateRequest& request);
// The body of POST /tokenize, or empty: there is nothing to ask. REQUIRES: the prompt is not ids.
std::string TokenizeQuestion(const GenerateRequest& request);
// INVALID_ARGUMENT: it is no answer to that.
Result<std::vector<model::TokenId>> ParseTokens(std::string_view body);

}  // namespace cairn::router
