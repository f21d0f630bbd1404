#pragma once
// The HTTP port of one simulated engine: as much of OpenAI's API, and of vLLM's additions to it, as
// routers ask for.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/compare/router/simulation.h"
#include "common/concurrency/mutex.h"
#include "common/http/server.h"

namespace cairn::compare {

enum class Answers : uint8_t {
  kSimulated,  // When the model of the engine has them.
  kAtOnce,     // All tokens at once, to measure what a router adds.
  kHeld,       // The first token of a stream at once, and then nothing until the client goes.
};

// Thread-safe.
class EngineApi final : public http::Handler {
 public:
  // `simulation` must outlive it. It is asked for kSimulated only.
  EngineApi(Answers answers, Simulation* simulation, size_t engine)
      : answers_(answers), simulation_(simulation), engine_(engine) {}

  void Handle(http::Request request, std::shared_ptr<http::Responder> responder) override;
  http::Response Refuse(int status, const std::string& message) override;

 private:
  void Generate(bool chat, const http::Request& request,
                std::shared_ptr<http::Responder> responder);
  std::string Metrics() const;

  const Answers answers_;
  Simulation* const simulation_;
  const size_t engine_;
  std::atomic<uint64_t> next_{0};
  Mutex mu_;
  std::vector<std::unique_ptr<EngineAnswer>> held_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::compare
