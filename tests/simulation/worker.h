#pragma once
// The cores of a worker with a small random model (tests/data/gguf) in a simulation.

#include <memory>
#include <string>

#include "cairn/client/cache_client.h"
#include "services/worker/engine/engine_core.h"
#include "tests/simulation/simulation.h"

namespace cairn::testing {

struct WorkerOptions {
  worker::WorkerEngine::Options engine;
  // The time of the forward pass for each token.
  Duration compute_time = std::chrono::microseconds(100);
  std::unique_ptr<worker::Scheduler> scheduler = nullptr;
};

// Not thread-safe. All functions are for tasks of the simulation.
class Worker {
 public:
  // `cache` may be null.
  Worker(Simulation& simulation, std::unique_ptr<client::CacheClient> cache,
         WorkerOptions options = {});
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  worker::EngineCore& engine() { return *engine_; }
  // Runs one request, and notes its end in the trace.
  worker::GenerateSummary Run(const worker::GenerateRequest& request);
  // Returns when everything is pushed.
  void Idle();

 private:
  Simulation& simulation_;
  SimulatedPool background_;
  std::unique_ptr<worker::EngineCore> engine_;
  SimulatedPool driver_;
  SimulatedPool pusher_;
  SimulatedPool urgent_pusher_;
};

// `count` tokens that depend on `seed`; prompts of one seed share their beginning.
worker::GenerateRequest Prompt(size_t count, uint32_t seed = 1, uint32_t max_tokens = 4);

// The part of an answer that must not depend on the cache, as text: tokens, and a digest of the
// prompt's logits.
std::string AnswerOf(const worker::GenerateSummary& summary);

}  // namespace cairn::testing
