#include "tests/support/generated_traces.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace cairn::testing {
namespace {

using cli::replay::Trace;
using cli::replay::TraceRequest;

constexpr double kHour = 3600;
constexpr uint32_t kBlockTokens = 512;
constexpr uint32_t kSystemBlocks = 2;

// Collects requests of several sources in any order.
class Mixture {
 public:
  explicit Mixture(uint64_t seed) : rng_(seed) {
    for (uint32_t i = 0; i < kSystemBlocks; ++i) system_.push_back(NewBlock());
  }

  // Conversations that begin `per_second`, in [begin, end). Each has a first prompt, and goes on
  // with a probability that grows with its turns.
  void Chats(double per_second, double begin, double end) {
    std::lognormal_distribution<double> prompt(std::log(10), 1), more(std::log(2.5), 0.8);
    std::lognormal_distribution<double> pause(std::log(100), 1.1);
    for (double start : Arrivals(per_second, begin, end)) {
      std::vector<uint32_t> path = system_;
      double at = start, goes_on = 0.3;
      do {
        Extend(&path,
               std::clamp<double>(path.size() > kSystemBlocks ? more(rng_) : prompt(rng_), 1, 240));
        Ask(at, path);
        at += 5 + pause(rng_);
        if (Uniform() > goes_on) break;
        goes_on = std::min(goes_on + 0.12, 0.6);
      } while (at < kHour);
    }
  }

  // Tasks of 5 to 30 steps; each step is a request 4 s after the one before, with a new block or
  // two.
  void Agents(double per_second, double begin, double end) {
    for (double start : Arrivals(per_second, begin, end)) {
      std::vector<uint32_t> path = system_;
      Extend(&path, 4 + 12 * Uniform());
      const int steps = 5 + static_cast<int>(26 * Uniform());
      for (int step = 0; step < steps; ++step) {
        Ask(start + step * (3 + 2 * Uniform()), path);
        Extend(&path, 1 + 2 * Uniform());
      }
    }
  }

  // Questions about 400 documents.
  void Documents(double per_second) {
    std::vector<std::vector<uint32_t>> documents;
    std::vector<double> weights;
    for (int i = 0; i < 400; ++i) {
      documents.push_back(system_);
      Extend(&documents.back(), 10 + 60 * Uniform());
      weights.push_back(1.0 / (i + 1));
    }
    std::discrete_distribution<size_t> which(weights.begin(), weights.end());
    for (double at : Arrivals(per_second, 0, kHour)) {
      std::vector<uint32_t> path = documents[which(rng_)];
      Extend(&path, 1 + 2 * Uniform());
      Ask(at, path);
    }
  }

  // Prompts that nobody goes on with.
  void Batch(double per_second, double begin, double end) {
    for (double at : Arrivals(per_second, begin, end)) {
      std::vector<uint32_t> path = system_;
      Extend(&path, 10 + 40 * Uniform());
      Ask(at, path);
    }
  }

  Trace Finish() {
    std::stable_sort(trace_.requests.begin(), trace_.requests.end(),
                     [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
    trace_.block_tokens = kBlockTokens;
    trace_.distinct_blocks = blocks_;
    return std::move(trace_);
  }

 private:
  uint32_t NewBlock() { return blocks_++; }
  double Uniform() { return std::uniform_real_distribution<double>(0, 1)(rng_); }
  std::vector<double> Arrivals(double per_second, double begin, double end) {
    std::exponential_distribution<double> gap(per_second);
    std::vector<double> times;
    for (double at = begin + gap(rng_); at < end; at += gap(rng_)) times.push_back(at);
    return times;
  }
  void Extend(std::vector<uint32_t>* path, double blocks) {
    for (int i = 0; i < static_cast<int>(blocks); ++i) path->push_back(NewBlock());
  }
  // The last block of the prompt is not full, so nobody shares it.
  void Ask(double at, const std::vector<uint32_t>& path) {
    if (at >= kHour) return;
    TraceRequest request{.seconds = at, .blocks = path};
    request.blocks.push_back(NewBlock());
    request.input_tokens = static_cast<uint32_t>(path.size()) * kBlockTokens + 1 +
                           static_cast<uint32_t>((kBlockTokens - 2) * Uniform());
    trace_.blocks += request.blocks.size();
    trace_.tokens += request.input_tokens;
    trace_.requests.push_back(std::move(request));
  }

  std::mt19937_64 rng_;
  uint32_t blocks_ = 0;
  std::vector<uint32_t> system_;
  Trace trace_;
};

}  // namespace

std::vector<GeneratedTrace> GenerateTraces(uint64_t seed) {
  std::vector<GeneratedTrace> traces;
  const auto add = [&](const char* name, const auto& fill) {
    Mixture mixture(seed + traces.size());
    fill(mixture);
    traces.push_back({name, mixture.Finish()});
  };
  add("chat", [](Mixture& m) { m.Chats(1.5, 0, kHour); });
  add("agents", [](Mixture& m) { m.Agents(0.12, 0, kHour); });
  add("documents", [](Mixture& m) { m.Documents(2); });
  add("batch beside chat", [](Mixture& m) {
    m.Chats(1, 0, kHour);
    m.Batch(1, 600, 2400);
  });
  add("chat, then agents", [](Mixture& m) {
    m.Chats(1.5, 0, kHour / 2);
    m.Agents(0.12, kHour / 2, kHour);
  });
  add("mixed", [](Mixture& m) {
    m.Chats(0.7, 0, kHour);
    m.Agents(0.04, 0, kHour);
    m.Documents(0.5);
    m.Batch(0.4, 0, kHour);
  });
  return traces;
}

}  // namespace cairn::testing
