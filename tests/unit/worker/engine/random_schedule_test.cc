// Random mixes of requests under random schedules, one seed each, with joins, cancels, and requests
// that are parked and come back: every request that is not cancelled gets the logits, to the last
// bit, and the answer that it gets alone. With all kernels that run on this machine.

#include <algorithm>
#include <random>

#include "cairn/kernels/backend.h"
#include "services/worker/engine/engine_core.h"
#include "tests/unit/worker/engine/engine_fixture.h"

namespace cairn::worker {
namespace {

using Progress = EngineCore::Progress;

// Steps some of the requests, in some order, with some budget.
class RandomScheduler final : public Scheduler {
 public:
  RandomScheduler(size_t max_running, uint32_t seed) : max_running_(max_running), rng_(seed) {}
  size_t max_running() const override { return max_running_; }
  StepPlan Next(std::span<const Candidate> running, TimePoint /*now*/) override {
    StepPlan plan;
    for (size_t i = 0; i < running.size(); ++i) {
      if (rng_() % 4 != 0) plan.order.push_back(i);
    }
    if (plan.order.empty()) plan.order.push_back(rng_() % running.size());
    std::ranges::shuffle(plan.order, rng_);
    if (rng_() % 3 == 0) plan.prefill_tokens = kBlockTokens * static_cast<int64_t>(rng_() % 4);
    return plan;
  }

 private:
  const size_t max_running_;
  std::mt19937 rng_;
};

class RandomScheduleTest : public EngineFixture, public ::testing::WithParamInterface<uint32_t> {
 protected:
  std::unique_ptr<EngineCore> Core(const kernels::Backend& backend,
                                   std::unique_ptr<client::CacheClient> cache,
                                   std::unique_ptr<Scheduler> scheduler, uint64_t pages,
                                   uint64_t parked_pages = 0) {
    WorkerEngine::Options options = Options();
    const KvLayout kv{.layers = kLayers, .kv_heads = kKvHeads, .head_dim = 64};
    options.kv_pool_bytes = pages * kv.page_bytes();
    options.parking_bytes = parked_pages * kv.page_bytes();
    options.queue_capacity = 64;
    options.queue_max_wait = Duration(0);
    auto parts =
        LoadEngineParts(options, std::move(cache), std::move(scheduler), SteadyClock::Get());
    EXPECT_OK(parts);
    Transformer::Options compute;
    compute.threads = 2;
    compute.max_context = parts->options.max_context;
    compute.backend = &backend;
    auto transformer = Transformer::Create(*parts->model, compute);
    EXPECT_OK(transformer);
    parts->transformer = *std::move(transformer);
    return std::make_unique<EngineCore>(*std::move(parts), &executor_);
  }

  // A prompt of one of a few families, which leaves its family somewhere.
  static GenerateRequest RandomRequest(std::mt19937& rng) {
    const size_t count = 1 + rng() % 420;
    GenerateRequest request =
        Request(count, static_cast<int32_t>(1 + rng() % 3), static_cast<uint32_t>(1 + rng() % 16));
    auto& ids = std::get<TokenPrompt>(request.prompt).ids;
    for (size_t i = rng() % (count + 1); i < count; ++i) {
      ids[i] = static_cast<int32_t>(20 + rng() % 200);
    }
    if (rng() % 3 == 0) {
      request.sampling.temperature = 0.8f;
      request.sampling.seed = rng();
    }
    request.no_cache = rng() % 8 == 0;
    // Lower ones give their pages to others, and come back.
    request.priority = rng() % 3 == 0 ? -1 : 0;
    return request;
  }

  struct Sent {
    GenerateRequest request;
    std::shared_ptr<Job> job;
    bool cancelled = false;
  };
  // Sends, steps, pushes and cancels at random, until all is done.
  static std::vector<Sent> Play(EngineCore& core, size_t requests, std::mt19937& rng) {
    std::vector<Sent> sent;
    while (true) {
      if (sent.size() < requests && rng() % 3 == 0) {
        sent.push_back({RandomRequest(rng), nullptr});
        auto job = core.Submit(sent.back().request);
        EXPECT_OK(job);
        sent.back().job = *std::move(job);
      }
      if (!sent.empty() && rng() % 40 == 0) {
        Sent& victim = sent[rng() % sent.size()];
        victim.job->Cancel();
        victim.cancelled = true;
      }
      if (core.push_queue() != nullptr && rng() % 4 == 0) core.push_queue()->RunOnce();
      if (core.Step() == Progress::kIdle && sent.size() == requests) return sent;
    }
  }

  ThreadPool executor_{{.name = "fetch", .threads = 8}};
};

TEST_P(RandomScheduleTest, LogitsAreThoseOfEachRequestAlone) {
  uint64_t parked = 0;
  for (const kernels::Backend* backend : kernels::Backends()) {
    if (backend->forward == nullptr || !backend->runs_inline) continue;
    std::mt19937 rng(GetParam());
    const bool cache = rng() % 2 == 0;
    InMemoryCacheClient node;
    auto alone = Core(*backend, nullptr, std::make_unique<FifoScheduler>(), 40);
    // Sometimes there are too few pages for all.
    auto core =
        Core(*backend, cache ? std::make_unique<SharedClient>(node) : nullptr,
             std::make_unique<RandomScheduler>(2 + rng() % 7, rng()), 10 + rng() % 40, rng() % 12);
    // The reference computes in double precision, and slowly.
    const size_t requests = std::string(backend->name) == "reference" ? 2 : 12;
    for (const Sent& sent : Play(*core, requests, rng)) {
      const auto got = sent.job->Consume({});
      ASSERT_OK(got);
      if (got->finish_reason == "cancelled") {
        EXPECT_TRUE(sent.cancelled);
        continue;
      }
      const auto job = alone->Submit(sent.request);
      ASSERT_OK(job);
      while (alone->Step() != Progress::kIdle) {
      }
      const auto want = (*job)->Consume({});
      ASSERT_OK(want);
      ExpectSameAnswer(*got, *want);
      ASSERT_EQ(got->answer_logits_sha256, want->answer_logits_sha256)
          << backend->name << ", " << got->prompt_tokens << " tokens, " << got->fetched_tokens
          << " fetched, " << got->shared_tokens << " shared";
    }
    if (core->push_queue() != nullptr) {
      while (core->push_queue()->RunOnce()) {
      }
    }
    parked += core->GetStats().requests_parked;
    EXPECT_EQ(core->GetStats().kv_pages_free, core->GetStats().kv_pages_total);
    EXPECT_EQ(node.leases(), 0u);
  }
  RecordProperty("parked", static_cast<int>(parked));
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomScheduleTest, ::testing::Range(1u, 9u));

}  // namespace
}  // namespace cairn::worker
