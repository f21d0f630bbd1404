// Seconds that each selection takes for a prompt, scores and choice, next to its prefill; and
// seconds of CPU over threads, which a busy neighbour does not lengthen.
//
//   selection_bench [--tokens N] [--threads N] [--trials N] [--prefill SECONDS] [--only NAME]
//                   [--json]
//
// The model has SmolLM2-135M's shape: 30 layers, 9 query and 3 KV heads of 64. Keys, values and
// queries are normal numbers, keys and values each layer's own; queries arrive in blocks of 64
// rows, layer by layer, as in a prefill. Prefill is measured elsewhere (worker_bench), and given.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/selections/registry.h"
#include "tests/support/half.h"

namespace cairn::selections {
namespace {

using cairn::testing::Half;

constexpr ModelShape kShape{.layers = 30,
                            .query_heads = 9,
                            .kv_heads = 3,
                            .head_dim = 64,
                            .hidden = 576,
                            .rope_dim = 64,
                            .rope_base = 100000};
constexpr int64_t kBlock = 64;
constexpr int64_t kWidth = int64_t{kShape.query_heads} * kShape.head_dim;

struct Options {
  int64_t tokens = 4096;
  int threads = 2;
  int trials = 3;
  double prefill = 0;
  std::string only;
  bool json = false;
};

class Prompt {
 public:
  explicit Prompt(int64_t tokens) : tokens_(tokens) {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    // A prime number of them, so that no two rows are alike.
    std::vector<Half> pattern(1048573);
    for (Half& x : pattern) x = static_cast<Half>(normal(rng));
    const int64_t head = kBlock * kShape.head_dim;
    const int64_t page = 2 * kShape.kv_heads * head;
    const int64_t pages = (tokens + kBlock - 1) / kBlock;
    numbers_.resize(static_cast<size_t>(kShape.layers * pages * page));
    for (size_t i = 0; i < numbers_.size(); ++i) numbers_[i] = pattern[i % pattern.size()];
    pages_.resize(static_cast<size_t>(kShape.layers * pages));
    for (size_t i = 0; i < pages_.size(); ++i) {
      const Half* const at = numbers_.data() + i * static_cast<size_t>(page);
      pages_[i] = reinterpret_cast<const std::byte*>(at);
    }
    for (int64_t l = 0; l < kShape.layers; ++l) {
      kernels::PagedKv kv;
      kv.pages = pages_.data() + l * pages;
      kv.block_tokens = kBlock;
      kv.head_dim = kShape.head_dim;
      kv.head_stride = static_cast<size_t>(head) * sizeof(Half);
      kv.v_offset = kShape.kv_heads * kv.head_stride;
      layers_.push_back(kv);
    }
    queries_.resize(static_cast<size_t>(tokens * kWidth));
    for (float& x : queries_) x = normal(rng);
    projection_.resize(static_cast<size_t>(kWidth * kShape.hidden));
    for (float& x : projection_) x = 0.1f * normal(rng);
    for (int64_t t = 0; t < tokens; ++t) ids_.push_back(static_cast<int32_t>(rng() % 1000));
  }

  // Seconds of one selection, elapsed and of CPU; -1 when it refuses.
  std::pair<double, double> Run(const Selection& selection, kernels::ThreadPool& pool) const {
    const SegmentKv kv{tokens_, 0, layers_, ids_};
    ModelAccess model;
    model.output_projection = [this](int32_t, float* out) {
      std::copy(projection_.begin(), projection_.end(), out);
    };
    const std::vector<int32_t> separators = {1, 2, 3, 4, 5};
    model.separators = separators;
    KeptRows kept;
    const std::clock_t cpu = std::clock();
    const auto begin = std::chrono::steady_clock::now();
    const auto run = selection.Begin(kShape, model, tokens_);
    const int64_t first = selection.FirstObserved(tokens_);
    for (int64_t row = first; row < tokens_;) {
      const int64_t end = std::min(tokens_, (row / kBlock + 1) * kBlock);
      for (int32_t layer = 0; layer < kShape.layers; ++layer) {
        run->Observe({layer, row, end - row, queries_.data() + row * kWidth, kWidth}, kv, pool);
      }
      row = end;
    }
    const bool good = run->Select(kv, pool, &kept);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const double cpu_seconds =
        static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC / pool.threads();
    if (!good || kept.Count() == 0) return {-1, -1};
    return {seconds, cpu_seconds};
  }

 private:
  const int64_t tokens_;
  std::vector<Half> numbers_;
  std::vector<const std::byte*> pages_;
  std::vector<kernels::PagedKv> layers_;
  std::vector<float> queries_;  // The queries of one layer, given to all.
  std::vector<float> projection_;
  std::vector<int32_t> ids_;
};

struct Case {
  std::string label;
  std::string name;
  std::vector<int64_t> values;
};

// Every selection at half of the rows with its defaults, and ChunkKV with its layers in pairs.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const SelectionInfo& info : AllSelections()) {
    Case c{std::string(info.name), std::string(info.name), {}};
    for (const ParameterInfo& p : info.parameters) c.values.push_back(p.fallback.value_or(500));
    cases.push_back(c);
    if (info.name == "chunkkv") {
      c.label = "chunkkv:reuse=2";
      c.values[5] = 2;
      cases.push_back(c);
    }
  }
  return cases;
}

bool Parse(int argc, char** argv, Options* o) {
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--json") {
      o->json = true;
      continue;
    }
    if (i + 1 == argc) return false;
    const char* value = argv[++i];
    if (arg == "--tokens") {
      o->tokens = std::atoll(value);
    } else if (arg == "--threads") {
      o->threads = std::atoi(value);
    } else if (arg == "--trials") {
      o->trials = std::atoi(value);
    } else if (arg == "--prefill") {
      o->prefill = std::atof(value);
    } else if (arg == "--only") {
      o->only = value;
    } else {
      return false;
    }
  }
  return o->tokens > 0 && o->threads > 0 && o->trials > 0;
}

int Main(int argc, char** argv) {
  Options o;
  if (!Parse(argc, argv, &o)) {
    std::fprintf(stderr,
                 "usage: selection_bench [--tokens N] [--threads N] [--trials N] "
                 "[--prefill SECONDS] [--only NAME] [--json]\n");
    return 2;
  }
  const Prompt prompt(o.tokens);
  kernels::ThreadPool pool(o.threads);
  // Every third head comes first.
  selections::HeadScores heads{kShape.layers, kShape.kv_heads, {}};
  for (int32_t i = 0; i < kShape.layers * kShape.kv_heads; ++i) {
    heads.scores.push_back(static_cast<float>(-(i % 3)));
  }
  std::string rows;
  for (const Case& c : Cases()) {
    if (!o.only.empty() && o.only != c.name) continue;
    const auto selection = MakeSelection(c.name, c.values, &heads);
    std::vector<double> seconds, cpu;
    for (int t = 0; t < o.trials; ++t) {
      const auto [elapsed, used] = prompt.Run(*selection, pool);
      seconds.push_back(elapsed);
      cpu.push_back(used);
    }
    std::sort(seconds.begin(), seconds.end());
    std::sort(cpu.begin(), cpu.end());
    const double median_cpu = cpu[cpu.size() / 2];
    if (seconds.front() < 0) {
      std::fprintf(stderr, "%s refused the prompt\n", c.label.c_str());
      return 1;
    }
    const double median = seconds[seconds.size() / 2];
    if (!o.json) {
      std::printf("%-20s %8.3f s  (%.3f to %.3f), CPU %.3f s", c.label.c_str(), median,
                  seconds.front(), seconds.back(), median_cpu);
      if (o.prefill > 0) std::printf("  %6.2f %% of prefill", 100 * median / o.prefill);
      std::printf("\n");
      std::fflush(stdout);
    }
    char text[200];
    std::snprintf(text, sizeof(text),
                  "%s\"%s\": {\"median\": %.4f, \"least\": %.4f, \"most\": %.4f, \"cpu\": %.4f}",
                  rows.empty() ? "" : ", ", c.label.c_str(), median, seconds.front(),
                  seconds.back(), median_cpu);
    rows += text;
  }
  if (o.json) {
    std::printf(
        "{\"tokens\": %lld, \"threads\": %d, \"trials\": %d, \"prefill_s\": %.3f, "
        "\"seconds\": {%s}}\n",
        static_cast<long long>(o.tokens), o.threads, o.trials, o.prefill, rows.c_str());
  }
  return 0;
}

}  // namespace
}  // namespace cairn::selections

int main(int argc, char** argv) { return cairn::selections::Main(argc, argv); }
