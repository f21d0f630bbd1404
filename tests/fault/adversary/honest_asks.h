#pragma once
// Honest clients of a router, of a worker, of a picker and of the admin ports: they ask for what
// they know already, and compare.

#include <memory>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "tests/fault/adversary/honest_load.h"

namespace cairn::fault {

// A prompt with the only right answer.
struct KnownAnswer {
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;
  std::string text;
};
// As a worker answers that uses no cache.
Result<std::vector<KnownAnswer>> AskAll(const std::string& worker);

// Where they ask is "127.0.0.1:PORT". `answers` outlive them.
// Completions over HTTP, half of them as streams.
std::unique_ptr<HonestClient> NewHttpAsks(const std::string& http, const std::string& key,
                                          const std::vector<KnownAnswer>& answers);
std::unique_ptr<HonestClient> NewRouterAsks(const std::string& router, const std::string& tenant,
                                            const std::vector<KnownAnswer>& answers);
std::unique_ptr<HonestClient> NewWorkerAsks(const std::string& worker, const std::string& tenant,
                                            const std::vector<KnownAnswer>& answers);
// As a gateway: where does this request go? To `endpoint`.
std::unique_ptr<HonestClient> NewPickerAsks(const std::string& picker, const std::string& endpoint,
                                            const std::vector<KnownAnswer>& answers);
// As Prometheus, one admin port after the other.
std::unique_ptr<HonestClient> NewScrapes(const std::vector<std::string>& admins);

// The body of a completion of this prompt, greedy, not ended by the model.
std::string CompletionOf(const std::vector<int32_t>& prompt, uint32_t max_tokens, bool stream);

}  // namespace cairn::fault
