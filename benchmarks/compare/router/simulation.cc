#include "benchmarks/compare/router/simulation.h"

#include <sys/prctl.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace cairn::compare {
namespace {

// How often Facts are taken.
constexpr Duration kFactsEach = std::chrono::milliseconds(5);
constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

Simulation::Simulation(const Options& options) : options_(options), facts_(options.engines) {
  for (size_t i = 0; i < options.engines; ++i) {
    engines_.push_back(std::make_unique<Engine>(options.worker));
  }
  thread_ = std::thread([this] { Run(); });
}

Simulation::~Simulation() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

double Simulation::Now() const {
  return Seconds(SteadyClock::Get().Now() - start_) * options_.compression;
}

void Simulation::Submit(size_t engine, const EngineAsk& ask, std::unique_ptr<EngineAnswer> answer) {
  Arrival arrival{.engine = engine, .request = RequestOf(ask), .answer = std::move(answer)};
  MutexLock lock(mu_);
  arrival.at = Now();  // With the lock, so that arrivals are in order.
  arrivals_.push_back(std::move(arrival));
  changed_.NotifyAll();
}

simulated::WorkerFacts Simulation::Facts(size_t engine) const {
  MutexLock lock(mu_);
  return facts_.at(engine);
}

void Simulation::Run() {
  // A wake-up comes 50 us late by default, which is milliseconds of the model.
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  TimePoint next_facts = start_;
  while (true) {
    std::vector<Arrival> arrivals;
    {
      MutexLock lock(mu_);
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stop_ || !arrivals_.empty();
      };
      if (const Engine* next = NextEngine()) {
        const double seconds = *next->worker.next_event() / options_.compression;
        const auto since = std::chrono::duration<double>(seconds);
        changed_.WaitUntil(mu_, start_ + std::chrono::duration_cast<Duration>(since), ready);
      } else {
        changed_.Wait(mu_, ready);
      }
      if (stop_) return;
      arrivals.swap(arrivals_);
    }
    Play(std::move(arrivals), Now());
    const TimePoint now = SteadyClock::Get().Now();
    if (now < next_facts) continue;
    next_facts = now + kFactsEach;
    std::vector<simulated::WorkerFacts> facts;
    for (const auto& engine : engines_) facts.push_back(engine->worker.Facts());
    MutexLock lock(mu_);
    facts_ = std::move(facts);
  }
}

Simulation::Engine* Simulation::NextEngine() const {
  Engine* next = nullptr;
  double least = kNever;
  for (const auto& engine : engines_) {
    const std::optional<double> at = engine->worker.next_event();
    if (!at || *at >= least) continue;
    least = *at;
    next = engine.get();
  }
  return next;
}

void Simulation::Play(std::vector<Arrival> arrivals, double now) {
  size_t arrived = 0;
  while (true) {
    Engine* const engine = NextEngine();
    const double step = engine == nullptr ? kNever : *engine->worker.next_event();
    const double arrival = arrived < arrivals.size() ? arrivals[arrived].at : kNever;
    if (std::min(step, arrival) > now) return;
    // An arrival may be a little older than the last step that was played.
    played_ = std::max(played_, std::min(step, arrival));
    if (arrival <= step) {
      Arrive(std::move(arrivals[arrived++]), played_);
    } else {
      Step(engine);
    }
  }
}

void Simulation::Arrive(Arrival arrival, double now) {
  Engine& engine = *engines_.at(arrival.engine);
  const int64_t cached = engine.worker.CachedTokens(arrival.request);
  engine.requests.push_back(std::move(arrival.request));
  engine.open.push_back({.answer = std::move(arrival.answer), .cached_tokens = cached});
  std::optional<size_t> displaced;
  // The queue holds more than there are requests, so it refuses none.
  CAIRN_CHECK(engine.worker.Arrive(engine.requests.size() - 1, now, &displaced));
}

void Simulation::Step(Engine* engine) {
  std::vector<simulated::Answered> done;
  std::vector<simulated::Generated> generated;
  engine->worker.Step(*engine->worker.next_event(), &done, &generated);
  for (const simulated::Generated& one : generated) {
    Open& open = engine->open[one.request];
    if (open.sent > 0 && one.tokens < open.sent + options_.stream_interval) continue;
    open.answer->Tokens(one.tokens - open.sent);
    open.sent = one.tokens;
  }
  for (const simulated::Answered& one : done) {
    Open& open = engine->open[one.request];
    const int64_t tokens = engine->requests[one.request].output_tokens;
    if (open.sent < tokens) open.answer->Tokens(tokens - open.sent);
    open.answer->End(open.cached_tokens);
    open.answer.reset();
    engine->requests[one.request].blocks.clear();
  }
}

}  // namespace cairn::compare
