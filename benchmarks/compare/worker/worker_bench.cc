// Speed of the worker's forward pass: one measurement a call, so that run.sh can interleave it with
// other engines on the same machine.
//
//   worker_bench MODEL.gguf prefill 512
//   worker_bench MODEL.gguf decode 512
//   worker_bench MODEL.gguf recompute 128
//
// prints one JSON object.

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "services/worker/compute/transformer.h"

namespace {

using cairn::model::Model;
using cairn::worker::Arithmetic;
using cairn::worker::KvPool;
using cairn::worker::KvSequence;
using cairn::worker::Phase;
using cairn::worker::SequenceChunk;
using cairn::worker::Transformer;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The time of all threads: a neighbour on the machine does not count.
double CpuNow() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

void Check(const cairn::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "worker_bench: %s\n", cairn::ToString(status).c_str());
  std::exit(1);
}

// Not a text, but what text costs does not depend on the tokens.
int32_t TokenAt(int64_t position) { return static_cast<int32_t>(1000 + position * 7919 % 40000); }

class Bench {
 public:
  Bench(const std::string& path, const Transformer::Options& options) {
    const double start = Now();
    auto model = Model::Load(path);
    Check(model.status());
    model_ = std::move(model).value();
    auto transformer = Transformer::Create(*model_, options);
    Check(transformer.status());
    transformer_ = std::move(transformer).value();
    load_s_ = Now() - start;
    auto pool = KvPool::Create(transformer_->kv_layout(), size_t{1} << 30);
    Check(pool.status());
    pool_ = std::move(pool).value();
    logits_.resize(static_cast<size_t>(transformer_->vocab()));
  }

  KvSequence NewSequence() { return pool_->NewSequence(); }

  void Prefill(KvSequence* sequence, int64_t length, int64_t chunk) {
    Check(sequence->Reserve(length));
    std::vector<int32_t> tokens;
    while (sequence->length() < length) {
      const int64_t begin = sequence->length();
      tokens.clear();
      for (int64_t i = begin; i < std::min(length, begin + chunk); ++i) {
        tokens.push_back(TokenAt(i));
      }
      Forward(sequence, tokens, Phase::kPrefill, sequence->length() + chunk >= length);
    }
  }

  void Decode(KvSequence* sequence, int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      Check(sequence->Reserve(sequence->length() + 1));
      const int32_t token = TokenAt(sequence->length());
      Forward(sequence, std::span(&token, 1), Phase::kDecode, true);
    }
  }

  Transformer& transformer() { return *transformer_; }
  double load_s() const { return load_s_; }

 private:
  void Forward(KvSequence* sequence, std::span<const int32_t> tokens, Phase phase, bool last) {
    SequenceChunk c;
    c.sequence = sequence;
    c.tokens = tokens;
    c.phase = phase;
    c.logits = last ? logits_.data() : nullptr;
    Check(transformer_->Forward(std::span(&c, 1)));
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<KvPool> pool_;
  std::vector<float> logits_;
  double load_s_ = 0.0;
};

int Usage() {
  std::fprintf(stderr,
               "usage: worker_bench MODEL.gguf prefill|decode|recompute N "
               "[--threads T] [--float32] [--isa NAME] [--chunk TOKENS] [--repeat R]\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return Usage();
  const std::string what = argv[2];
  const int64_t n = std::atoll(argv[3]);
  Transformer::Options options;
  options.threads = 2;
  int64_t chunk = 0;
  int repeat = 1;
  for (int i = 4; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--float32") {
      options.arithmetic = Arithmetic::kFloat32;
    } else if (i + 1 < argc && flag == "--threads") {
      options.threads = std::atoi(argv[++i]);
    } else if (i + 1 < argc && flag == "--isa") {
      options.backend = cairn::kernels::FindBackend(argv[++i]);
    } else if (i + 1 < argc && flag == "--chunk") {
      chunk = std::atoll(argv[++i]);
    } else if (i + 1 < argc && flag == "--repeat") {
      repeat = std::atoi(argv[++i]);
    } else {
      return Usage();
    }
  }
  if (n < 1 || repeat < 1) return Usage();

  Bench bench(argv[1], options);
  if (chunk == 0) chunk = bench.transformer().max_rows();
  double best = 0.0;
  double best_cpu = 0.0;
  double seconds_cached = 0.0;
  for (int r = 0; r < repeat; ++r) {
    KvSequence sequence = bench.NewSequence();
    double rate = 0.0, cpu_rate = 0.0;
    if (what == "prefill") {
      KvSequence warm = bench.NewSequence();
      bench.Prefill(&warm, 64, 64);
      const double start = Now(), cpu = CpuNow();
      bench.Prefill(&sequence, n, chunk);
      rate = static_cast<double>(n) / (Now() - start);
      cpu_rate = static_cast<double>(n) / (CpuNow() - cpu);
    } else if (what == "decode") {
      constexpr int64_t kSteps = 64;
      bench.Prefill(&sequence, n, chunk);
      bench.Decode(&sequence, 2);
      const double start = Now(), cpu = CpuNow();
      bench.Decode(&sequence, kSteps);
      rate = kSteps / (Now() - start);
      cpu_rate = kSteps / (CpuNow() - cpu);
    } else if (what == "recompute") {
      // n tokens after a prompt of 64: with the KV cache, and all again at each step.
      constexpr int64_t kPrompt = 64;
      double start = Now();
      bench.Prefill(&sequence, kPrompt, chunk);
      bench.Decode(&sequence, n - 1);
      seconds_cached = Now() - start;
      sequence.Clear();
      start = Now();
      for (int64_t i = 0; i < n; ++i) {
        KvSequence anew = bench.NewSequence();
        bench.Prefill(&anew, kPrompt + i, chunk);
      }
      rate = (Now() - start) / seconds_cached;
    } else {
      return Usage();
    }
    best = std::max(best, rate);
    best_cpu = std::max(best_cpu, cpu_rate);
  }
  std::printf(
      "{\"engine\":\"cairn\",\"what\":\"%s\",\"n\":%lld,\"value\":%.4g,\"unit\":\"%s\","
      "\"per_cpu_s\":%.4g,"
      "\"numerics\":\"%s\",\"threads\":%d,\"load_s\":%.3f}\n",
      what.c_str(), static_cast<long long>(n), best, what == "recompute" ? "x" : "tok/s", best_cpu,
      bench.transformer().numerics_id().c_str(), bench.transformer().threads(), bench.load_s());
  return 0;
}
