#pragma once
// The router's line to engines that speak OpenAI's API over HTTP: vLLM, SGLang, llama.cpp, another
// cairn-router.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/http/client.h"
#include "common/memory/fair_budget.h"
#include "services/router/registry/worker_link.h"
#include "services/router/relay/key_file.h"

namespace cairn::router {

struct EngineLinkOptions {
  // Most time in which an engine says nothing while it works on a request.
  Duration silence = std::chrono::minutes(5);
  uint64_t max_answer_bytes = 16 << 20;  // Limit for an answer that is no stream.
  // The memory of all answers that are no streams, while they arrive. nullptr: no bound.
  std::shared_ptr<FairBudget> answers = {};
  uint32_t block_tokens = 16;
  Duration load_interval = std::chrono::milliseconds(100);  // Between two reports of its load.
  // Whether the engine's events are followed: what it holds is known from these then. Empty: of
  // none. Any thread.
  std::function<bool(const std::string& address)> has_events = {};
};

// `client` and `clock` must outlive the links, `key` too: nullptr, engines need none. REQUIRES of
// addresses: http::ParseOrigin takes them.
MakeWorkerLink EngineLinks(const EngineLinkOptions& options, http::Client* client, KeyFile* key,
                           const Clock* clock);

// The headers of every request to an engine.
std::vector<http::Header> EngineHeaders(KeyFile* key);

}  // namespace cairn::router
