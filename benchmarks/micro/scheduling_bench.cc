// scheduling_bench --model FILE [--seconds 4] [--repeat 3] [--json]
//
// A real worker's engine, driven from this thread:
// - what decodes and prompts keep of their speed alone when both want the worker, and the longest
//   time between two tokens of one request (decode_share 0.5);
// - what parking a chat of 2,048 tokens and bringing it back costs next to computing it.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/worker/random_chat.h"
#include "services/worker/engine/engine_core.h"
#include "services/worker/engine/engine_parts.h"
#include "services/worker/session/parked_kv.h"

namespace cairn::worker {
namespace {

constexpr size_t kDecodes = 4;
// Short, because prompts count when they are complete.
constexpr size_t kPromptTokens = 128;
constexpr int64_t kChatTokens = 2048;

struct Options {
  std::string model;
  double seconds = 4;
  int repeat = 3;
  bool json = false;
};

double Now() { return Seconds(SteadyClock::Get().Now().time_since_epoch()); }

// The results of some seconds.
struct Rates {
  double decode = 0;   // Tokens per second, of all requests.
  double prefill = 0;  // Prompt tokens per second.
  double gap = 0;      // The longest time between two tokens of a request.
  double step = 0;     // Mean time of a step.
};

class Worker {
 public:
  explicit Worker(const Options& options) : options_(options) {
    WorkerEngine::Options engine;
    engine.model_path = options.model;
    engine.max_running = 2 * kDecodes;
    engine.kv_pool_bytes = 1ull << 30;
    engine.queue_max_wait = Duration(0);
    auto parts = LoadEngineParts(engine, nullptr, nullptr, SteadyClock::Get());
    if (!parts.ok()) {
      std::fprintf(stderr, "scheduling_bench: %s\n", ToString(parts.status()).c_str());
      std::exit(1);
    }
    core_ = std::make_unique<EngineCore>(*std::move(parts), nullptr);
  }

  Rates Measure(bool decodes, bool prompts) {
    std::vector<std::shared_ptr<Job>> decoding, waiting;
    if (decodes) {
      for (size_t i = 0; i < kDecodes; ++i) decoding.push_back(Submit(64, 1500));
      const auto begun = [](const auto& job) { return job->generated() > 2; };
      while (!std::ranges::all_of(decoding, begun)) core_->Step();
    }
    // The first seconds teach the engine how fast it is.
    Run(options_.seconds / 4, prompts, decoding, &waiting);
    const Rates rates = Run(options_.seconds, prompts, decoding, &waiting);
    for (const auto& job : decoding) job->Cancel();
    for (const auto& job : waiting) job->Cancel();
    while (core_->Step() == EngineCore::Progress::kWorked) {
    }
    return rates;
  }

  // Seconds to compute a chat, and to park it and bring it back.
  std::pair<double, double> Park() {
    const auto job = Submit(kChatTokens, 1);
    const double begin = Now();
    while (core_->Step() == EngineCore::Progress::kWorked) {
    }
    const double computed = Now() - begin;

    auto pool = KvPool::Create(Layout(), 256ull << 20);
    KvSequence chat = (*pool)->NewSequence();
    if (!chat.Reserve(kChatTokens).ok()) std::exit(1);
    for (int64_t page = 0; page < chat.page_count(); ++page) {
      for (int layer = 0; layer < Layout().layers; ++layer) {
        std::ranges::fill(chat.LayerSlice(page, layer), std::byte{1});
      }
    }
    chat.SetLength(kChatTokens);
    const double park = Now();
    const auto parked = ParkedKv::Of(chat);
    chat.Clear();
    if (!chat.Reserve(kChatTokens).ok()) std::exit(1);
    parked->Restore(chat);
    return {computed, Now() - park};
  }

 private:
  std::shared_ptr<Job> Submit(size_t prompt, uint32_t answer) {
    auto job = core_->Submit(RandomChat(0, 0, ++seed_, prompt, answer));
    if (!job.ok()) {
      std::fprintf(stderr, "scheduling_bench: %s\n", ToString(job.status()).c_str());
      std::exit(1);
    }
    return *std::move(job);
  }

  Rates Run(double seconds, bool prompts, const std::vector<std::shared_ptr<Job>>& decoding,
            std::vector<std::shared_ptr<Job>>* waiting) {
    Rates rates;
    std::vector<uint64_t> seen;
    for (const auto& job : decoding) seen.push_back(job->generated());
    std::vector<double> last(decoding.size(), Now());
    const double begin = Now();
    double end = begin;
    uint64_t decoded = 0, steps = 0, prefilled = 0;
    const uint64_t before = core_->GetStats().computed_tokens;
    while (end - begin < seconds) {
      while (prompts && core_->GetLoad().queued.empty()) {
        waiting->push_back(Submit(kPromptTokens, 1));
      }
      core_->Step();
      end = Now();
      ++steps;
      for (size_t i = 0; i < decoding.size(); ++i) {
        const uint64_t now = decoding[i]->generated();
        if (now == seen[i]) continue;
        decoded += now - seen[i];
        seen[i] = now;
        rates.gap = std::max(rates.gap, end - last[i]);
        last[i] = end;
      }
    }
    prefilled = core_->GetStats().computed_tokens - before;
    rates.decode = static_cast<double>(decoded) / (end - begin);
    rates.prefill = static_cast<double>(prefilled) / (end - begin);
    rates.step = (end - begin) / static_cast<double>(steps);
    return rates;
  }

  KvLayout Layout() const { return layout_; }

  const Options options_;
  std::unique_ptr<EngineCore> core_;
  const KvLayout layout_{.layers = 30, .kv_heads = 3, .head_dim = 64};  // SmolLM2-135M's.
  uint32_t seed_ = 0;
};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const bool more = i + 1 < argc;
    if (std::strcmp(argv[i], "--json") == 0) {
      options.json = true;
    } else if (std::strcmp(argv[i], "--model") == 0 && more) {
      options.model = argv[++i];
    } else if (std::strcmp(argv[i], "--seconds") == 0 && more) {
      options.seconds = std::strtod(argv[++i], nullptr);
    } else if (std::strcmp(argv[i], "--repeat") == 0 && more) {
      options.repeat = static_cast<int>(std::strtol(argv[++i], nullptr, 10));
    } else {
      options.model.clear();
      break;
    }
  }
  if (options.model.empty() || options.repeat < 1) {
    std::fprintf(stderr,
                 "usage: scheduling_bench --model FILE [--seconds 4] [--repeat 3] [--json]\n");
    return 2;
  }
  Worker worker(options);
  std::vector<double> decode, prefill, gap, park;
  for (int i = 0; i < options.repeat; ++i) {
    const Rates decodes = worker.Measure(true, false);
    const Rates prompts = worker.Measure(false, true);
    const Rates both = worker.Measure(true, true);
    const auto [computed, parked] = worker.Park();
    decode.push_back(both.decode / decodes.decode);
    prefill.push_back(both.prefill / prompts.prefill);
    gap.push_back(both.gap / (decodes.step + 64 / prompts.prefill));
    park.push_back(parked / computed);
    std::fprintf(stderr,
                 "alone: %.1f decodes/s, %.1f prompt tokens/s, a step %.4f s; both: %.1f, %.1f, "
                 "longest gap %.4f s; chat computed in %.3f s, parked and back in %.4f s\n",
                 decodes.decode, prompts.prefill, decodes.step, both.decode, both.prefill, both.gap,
                 computed, parked);
  }
  const auto print = [&](const char* name, const std::vector<double>& values, bool last) {
    std::string samples;
    for (const double value : values) samples += fmt::format("{:.6g},", value);
    samples.pop_back();
    if (options.json) {
      std::printf(" \"%s\": {\"median\": %.6g, \"samples\": [%s]}%s\n", name, Median(values),
                  samples.c_str(), last ? "" : ",");
    } else {
      std::printf("%-24s %.3f  (%s)\n", name, Median(values), samples.c_str());
    }
  };
  if (options.json) std::printf("{\n");
  print("decode_kept", decode, false);
  print("prefill_kept", prefill, false);
  print("gap_over_step_and_block", gap, false);
  print("parking_over_computing", park, true);
  if (options.json) std::printf("}\n");
  return 0;
}

}  // namespace
}  // namespace cairn::worker

int main(int argc, char** argv) { return cairn::worker::Main(argc, argv); }
