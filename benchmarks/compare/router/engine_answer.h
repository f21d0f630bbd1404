#pragma once
// One answer of a simulated engine, in the form of OpenAI's API.

#include <cstdint>
#include <memory>
#include <string>

#include "benchmarks/compare/router/engine_ask.h"
#include "common/http/server.h"

namespace cairn::compare {

inline constexpr char kModelId[] = "simulated";

// Not thread-safe. After the client has gone, all calls do nothing.
class EngineAnswer {
 public:
  EngineAnswer(const EngineAsk& ask, std::string id, std::shared_ptr<http::Responder> responder);

  // `count` more tokens were generated, and leave now: an event, if the client wants events.
  void Tokens(int64_t count);
  // The answer is complete. `cached_tokens`: of the trace, that were not computed.
  void End(int64_t cached_tokens);

 private:
  std::string Chunk(int64_t count, bool last) const;
  std::string Usage(int64_t cached_tokens) const;
  std::string Head(const char* object) const;

  const bool chat_, stream_, include_usage_;
  const size_t text_bytes_;
  const std::string id_;
  const std::shared_ptr<http::Responder> responder_;
  int64_t generated_ = 0;
};

}  // namespace cairn::compare
