// A worker's engine with many chats at once, compared with one at a time, in turn. Without a cache
// node.
//
//   batch_bench MODEL CASE [REPEAT [THREADS]]     one line of JSON for each trial
//
//   chats    16 short chats, one after the other and all at once: seconds for all of them.
//   prefix   16 chats with a common prefix of 2,048 tokens, and with different ones: tokens per
//            second while all 16 decode.
//   prompts  16 prompts with a common prefix of 2,048 tokens: tokens that were computed.
//   counts   1, 2, 4, 8 and 16 short chats at once: tokens per second while all of them decode.
//   alone    one chat, on an engine for 16 and on one for 1: tokens per second while it decodes.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/worker/random_chat.h"
#include "services/worker/engine/worker_engine.h"

namespace cairn::worker {
namespace {

using SteadyTime = std::chrono::steady_clock;

constexpr uint32_t kChats = 16;
constexpr size_t kPrefix = 2048;

double Seconds(SteadyTime::time_point from, SteadyTime::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

int threads = 0;  // That compute. 0: one for each processor.

// The time of all threads: with one that computes, neighbours that take the processor away do not
// count.
double ProcessorSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::unique_ptr<WorkerEngine> Engine(const std::string& model, uint32_t max_running) {
  WorkerEngine::Options options;
  options.threads = threads;
  options.model_path = model;
  options.max_running = max_running;
  options.kv_pool_bytes = 3ull << 30;
  options.queue_max_wait = Duration(0);
  options.decode_share = 0.1;  // The measurement begins when all prompts are computed.
  auto engine = WorkerEngine::Create(options, nullptr);
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", ToString(engine.status()).c_str());
    std::exit(1);
  }
  return *std::move(engine);
}

// The outcome of a request.
struct Run {
  GenerateSummary summary;
  std::vector<SteadyTime::time_point> tokens;  // When each came.
};

Run Generate(WorkerEngine& engine, const GenerateRequest& request) {
  Run run;
  GenerateCallbacks callbacks;
  callbacks.on_token = [&](model::TokenId, std::string_view) {
    run.tokens.push_back(SteadyTime::now());
    return true;
  };
  auto summary = engine.Generate(request, callbacks);
  if (!summary.ok()) {
    std::fprintf(stderr, "%s\n", ToString(summary.status()).c_str());
    std::exit(1);
  }
  run.summary = *std::move(summary);
  return run;
}

std::vector<Run> AtOnce(WorkerEngine& engine, const std::vector<GenerateRequest>& requests) {
  std::vector<Run> runs(requests.size());
  std::vector<std::thread> callers;
  for (size_t i = 0; i < requests.size(); ++i) {
    callers.emplace_back([&, i] { runs[i] = Generate(engine, requests[i]); });
  }
  for (std::thread& caller : callers) caller.join();
  return runs;
}

// Tokens per second from when all have begun to decode to when the first one ends.
double DecodeSpeed(const std::vector<Run>& runs) {
  SteadyTime::time_point begin = SteadyTime::time_point::min();
  SteadyTime::time_point end = SteadyTime::time_point::max();
  for (const Run& run : runs) {
    begin = std::max(begin, run.tokens.front());
    end = std::min(end, run.tokens.back());
  }
  int64_t tokens = 0;
  for (const Run& run : runs) {
    tokens += std::ranges::count_if(run.tokens, [&](auto t) { return t > begin && t <= end; });
  }
  return static_cast<double>(tokens) / Seconds(begin, end);
}

void Chats(const std::string& model, int repeat) {
  const auto engine = Engine(model, kChats);
  for (int trial = 0; trial < repeat; ++trial) {
    std::vector<GenerateRequest> chats;
    for (uint32_t i = 0; i < kChats; ++i) chats.push_back(RandomChat(i + 1, 0, i, 64, 192));
    // A quarter of them one after the other says as much as all.
    constexpr uint32_t kSome = kChats / 4;
    const auto start = SteadyTime::now();
    const double start_cpu = ProcessorSeconds();
    for (uint32_t i = 0; i < kSome; ++i) Generate(*engine, chats[i]);
    const auto between = SteadyTime::now();
    const double between_cpu = ProcessorSeconds();
    AtOnce(*engine, chats);
    const auto end = SteadyTime::now();
    const double one_cpu = kChats / kSome * (between_cpu - start_cpu);
    const double all_cpu = ProcessorSeconds() - between_cpu;
    const double one = kChats / kSome * Seconds(start, between), all = Seconds(between, end);
    std::printf(
        "{\"one_tokens_per_second\": %.2f, \"all_tokens_per_second\": %.2f, "
        "\"ratio\": %.4f, \"processor_ratio\": %.4f}\n",
        kChats * 192 / one, kChats * 192 / all, one / all, one_cpu / all_cpu);
    std::fflush(stdout);
  }
}

// Lets all chats of a group decode together for a while, then ends them.
class Together {
 public:
  explicit Together(uint32_t chats) : chats_(chats) {}

  // A chat has its `count`th token. False: the chat ends.
  bool OnToken(uint64_t count) {
    std::lock_guard lock(mu_);
    const auto now = SteadyTime::now();
    if (count == 1 && ++begun_ == chats_) {
      begin_ = now;
      begin_cpu_ = ProcessorSeconds();
    }
    if (begun_ < chats_ || seconds_ > 0) return seconds_ == 0;
    if (++tokens_ == chats_ * kTokens) {
      seconds_ = Seconds(begin_, now);
      cpu_ = ProcessorSeconds() - begin_cpu_;
    }
    return seconds_ == 0;
  }
  double tokens_per_second() const { return static_cast<double>(tokens_) / seconds_; }
  double tokens_per_processor_second() const { return static_cast<double>(tokens_) / cpu_; }

 private:
  static constexpr uint64_t kTokens = 64;  // Tokens of each chat, on average.

  const uint64_t chats_;
  std::mutex mu_;
  uint64_t begun_ = 0, tokens_ = 0;
  SteadyTime::time_point begin_;
  double seconds_ = 0, begin_cpu_ = 0, cpu_ = 0;
};

void Prefix(const std::string& model, int repeat) {
  const auto engine = Engine(model, kChats);
  for (int trial = 0; trial < repeat; ++trial) {
    double speed[2], cpu_speed[2];
    for (const bool common : {false, true}) {
      Together together(kChats);
      std::vector<std::thread> callers;
      for (uint32_t i = 0; i < kChats; ++i) {
        callers.emplace_back([&, i] {
          // Long enough that the first chats still go on when the last prompt is computed.
          const GenerateRequest chat =
              RandomChat(common ? 1 : i + 1, kPrefix, i, kPrefix + 16, 1400);
          uint64_t tokens = 0;
          GenerateCallbacks callbacks;
          callbacks.on_token = [&](model::TokenId, std::string_view) {
            return together.OnToken(++tokens);
          };
          const auto summary = engine->Generate(chat, callbacks);
          if (!summary.ok()) {
            std::fprintf(stderr, "%s\n", ToString(summary.status()).c_str());
            std::exit(1);
          }
        });
      }
      for (std::thread& caller : callers) caller.join();
      speed[common ? 1 : 0] = together.tokens_per_second();
      cpu_speed[common ? 1 : 0] = together.tokens_per_processor_second();
    }
    std::printf(
        "{\"different_tokens_per_second\": %.2f, \"common_tokens_per_second\": %.2f, "
        "\"ratio\": %.4f, \"processor_ratio\": %.4f}\n",
        speed[0], speed[1], speed[1] / speed[0], cpu_speed[1] / cpu_speed[0]);
    std::fflush(stdout);
  }
}

void Prompts(const std::string& model, int repeat) {
  const auto engine = Engine(model, kChats);
  for (int trial = 0; trial < repeat; ++trial) {
    std::vector<GenerateRequest> chats;
    for (uint32_t i = 0; i < kChats; ++i)
      chats.push_back(RandomChat(1, kPrefix, i, kPrefix + 40 + i, 4));
    uint64_t computed = 0, needed = kPrefix;
    for (const Run& run : AtOnce(*engine, chats)) {
      computed += run.summary.computed_tokens;
      needed += run.summary.prompt_tokens - kPrefix;
    }
    std::printf("{\"computed_tokens\": %llu, \"needed_tokens\": %llu, \"ratio\": %.4f}\n",
                static_cast<unsigned long long>(computed), static_cast<unsigned long long>(needed),
                static_cast<double>(needed) / static_cast<double>(computed));
    std::fflush(stdout);
  }
}

void Counts(const std::string& model, int repeat) {
  const auto engine = Engine(model, kChats);
  for (int trial = 0; trial < repeat; ++trial) {
    for (uint32_t count = 1; count <= kChats; count *= 2) {
      std::vector<GenerateRequest> chats;
      for (uint32_t i = 0; i < count; ++i) chats.push_back(RandomChat(i + 1, 0, i, 64, 192));
      std::printf("{\"chats\": %u, \"tokens_per_second\": %.2f}\n", count,
                  DecodeSpeed(AtOnce(*engine, chats)));
      std::fflush(stdout);
    }
  }
}

void Alone(const std::string& model, int repeat) {
  const auto many = Engine(model, kChats), one = Engine(model, 1);
  for (int trial = 0; trial < repeat; ++trial) {
    double speed[2];
    for (const int i : {0, 1}) {
      const int which = (i + trial) % 2;  // Neither is always the first.
      speed[which] =
          DecodeSpeed({Generate(which == 0 ? *one : *many, RandomChat(1, 0, 1, 64, 256))});
    }
    std::printf(
        "{\"one_tokens_per_second\": %.2f, \"many_tokens_per_second\": %.2f, "
        "\"ratio\": %.4f}\n",
        speed[0], speed[1], speed[1] / speed[0]);
    std::fflush(stdout);
  }
}

int Main(int argc, char** argv) {
  const std::string which = argc > 2 ? argv[2] : "";
  const int repeat = argc > 3 ? std::atoi(argv[3]) : 3;
  if (argc > 4) threads = std::atoi(argv[4]);
  const std::vector<std::pair<std::string, std::function<void(const std::string&, int)>>> cases = {
      {"chats", Chats},
      {"prefix", Prefix},
      {"prompts", Prompts},
      {"counts", Counts},
      {"alone", Alone}};
  for (const auto& [name, run] : cases) {
    if (name != which) continue;
    run(argv[1], repeat);
    return 0;
  }
  std::fprintf(stderr,
               "usage: batch_bench MODEL chats|prefix|prompts|counts|alone [REPEAT [THREADS]]\n");
  return 2;
}

}  // namespace
}  // namespace cairn::worker

int main(int argc, char** argv) { return cairn::worker::Main(argc, argv); }
