#include "tests/simulation/worker.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "common/status/matchers.h"

namespace cairn::testing {
namespace {

using worker::Transformer;

// Lets the simulation's time pass while the real one computes.
class TimedTransformer final : public Transformer {
 public:
  TimedTransformer(Simulation& simulation, Duration token_time, std::unique_ptr<Transformer> real)
      : simulation_(simulation), token_time_(token_time), real_(std::move(real)) {}

  Status Forward(std::span<const worker::SequenceChunk> chunks) override {
    std::vector<worker::SequenceChunk> timed(chunks.begin(), chunks.end());
    Duration at_once{0};
    for (worker::SequenceChunk& chunk : timed) {
      const Duration time = token_time_ * static_cast<int64_t>(chunk.tokens.size());
      if (chunk.before_layer == nullptr) {
        at_once += time;
        continue;
      }
      // Layers wait for fetched bytes in turn: so does the time that they take.
      chunk.before_layer = [this, time, layers = kv_layout().layers,
                            wait = chunk.before_layer](int layer) {
        if (layer > 0) simulation_.Sleep(time / layers);
        return wait(layer);
      };
      at_once += time / kv_layout().layers;  // The last one.
    }
    const Status status = real_->Forward(timed);
    if (status.ok()) simulation_.Sleep(at_once);
    return status;
  }

  int64_t max_rows() const override { return real_->max_rows(); }
  int64_t max_wide_rows() const override { return real_->max_wide_rows(); }
  const worker::KvLayout& kv_layout() const override { return real_->kv_layout(); }
  int32_t vocab() const override { return real_->vocab(); }
  int threads() const override { return real_->threads(); }
  kernels::ThreadPool& thread_pool() override { return real_->thread_pool(); }
  const std::string& numerics_id() const override { return real_->numerics_id(); }

 private:
  Simulation& simulation_;
  const Duration token_time_;
  const std::unique_ptr<Transformer> real_;
};

}  // namespace

Worker::Worker(Simulation& simulation, std::unique_ptr<client::CacheClient> cache,
               WorkerOptions options)
    : simulation_(simulation),
      background_(simulation),
      driver_(simulation),
      pusher_(simulation),
      urgent_pusher_(simulation) {
  options.engine.model_path = "tests/data/gguf/kquant.gguf";
  options.engine.threads = 1;  // A pool of one thread computes in the caller's.
  if (options.engine.kv_pool_bytes == 0) options.engine.kv_pool_bytes = 8 << 20;
  auto parts = worker::LoadEngineParts(options.engine, std::move(cache),
                                       std::move(options.scheduler), simulation.clock());
  EXPECT_OK(parts);
  parts->transformer = std::make_unique<TimedTransformer>(simulation, options.compute_time,
                                                          std::move(parts->transformer));
  engine_ = std::make_unique<worker::EngineCore>(*std::move(parts), &background_);
  EXPECT_OK(driver_.Post([this] { engine_->Run(); }));
  if (engine_->push_queue() != nullptr) {
    EXPECT_OK(pusher_.Post([this] { engine_->push_queue()->Run(); }));
    EXPECT_OK(urgent_pusher_.Post([this] { engine_->urgent_push_queue()->Run(); }));
  }
}

Worker::~Worker() {
  engine_->Close(simulation_.Now());
  driver_.Stop();
  engine_->Finish(simulation_.Now());
  pusher_.Stop();
  urgent_pusher_.Stop();
  engine_.reset();
}

worker::GenerateSummary Worker::Run(const worker::GenerateRequest& request) {
  auto summary = engine_->Generate(request, {});
  EXPECT_OK(summary);
  if (!summary.ok()) return {};
  simulation_.Note(fmt::format("answered: {} fetched, {} chosen, {}", summary->fetched_tokens,
                               summary->chosen_tokens, client::Name(summary->miss_reason)));
  return *std::move(summary);
}

void Worker::Idle() { EXPECT_TRUE(engine_->WaitIdle(std::chrono::hours(1))); }

worker::GenerateRequest Prompt(size_t count, uint32_t seed, uint32_t max_tokens) {
  worker::TokenPrompt prompt;
  uint32_t state = seed * 2654435761u;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    prompt.ids.push_back(static_cast<int32_t>(20 + (state >> 16) % 200));
  }
  worker::GenerateRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  request.want_logits_digest = true;
  return request;
}

std::string AnswerOf(const worker::GenerateSummary& summary) {
  return fmt::format(
      "{} {}", fmt::join(summary.tokens, ","),
      summary.prompt_logits_sha256 ? summary.prompt_logits_sha256->Hex() : "no logits");
}

}  // namespace cairn::testing
