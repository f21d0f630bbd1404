#pragma once
// Engines that take time by a formula (benchmarks/model/worker_model.h), in compressed real time: a
// second of the model passes in 1 / compression seconds.

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "benchmarks/compare/router/engine_answer.h"
#include "benchmarks/compare/router/engine_ask.h"
#include "benchmarks/model/worker_model.h"
#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"

namespace cairn::compare {

// Thread-safe. One thread of its own plays all engines.
class Simulation {
 public:
  struct Options {
    size_t engines = 4;
    double compression = 50;
    // An event leaves with the first token, and then with each group of this many, as in vLLM with
    // a stream interval.
    int64_t stream_interval = 32;
    simulated::WorkerOptions worker = {};
  };

  explicit Simulation(const Options& options);
  ~Simulation();  // Answers under way are given up.
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  // The request arrives at the engine now.
  void Submit(size_t engine, const EngineAsk& ask, std::unique_ptr<EngineAnswer> answer);
  // As of a few milliseconds ago.
  simulated::WorkerFacts Facts(size_t engine) const;

 private:
  struct Arrival {
    size_t engine = 0;
    double at = 0;
    simulated::Request request;
    std::unique_ptr<EngineAnswer> answer;
  };
  struct Open {
    std::unique_ptr<EngineAnswer> answer;
    int64_t cached_tokens = 0;
    int64_t sent = 0;  // Tokens that have left.
  };
  // All that one engine has. Used by the thread only.
  struct Engine {
    explicit Engine(const simulated::WorkerOptions& options) : worker(options, requests) {}
    std::vector<simulated::Request> requests;
    std::vector<Open> open;  // One for each request.
    simulated::WorkerModel worker;
  };

  double Now() const;  // Seconds of the model.
  void Run();
  // Everything until `now`, in the order of its time.
  void Play(std::vector<Arrival> arrivals, double now);
  void Arrive(Arrival arrival, double now);
  void Step(Engine* engine);
  // The next end of a step; no engine: all are idle.
  Engine* NextEngine() const;

  const Options options_;
  const TimePoint start_ = SteadyClock::Get().Now();
  std::vector<std::unique_ptr<Engine>> engines_;
  double played_ = 0;  // Until then. Used by the thread only.

  mutable Mutex mu_;
  CondVar changed_;
  std::vector<Arrival> arrivals_ ABSL_GUARDED_BY(mu_);  // In the order of their times.
  std::vector<simulated::WorkerFacts> facts_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace cairn::compare
