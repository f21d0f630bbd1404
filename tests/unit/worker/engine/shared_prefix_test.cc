// Prompts that begin alike and run at the same time: what they share is computed once, and every
// answer is the one that the request gets alone.

#include <functional>

#include "services/worker/engine/engine_core.h"
#include "tests/unit/worker/engine/engine_fixture.h"

namespace cairn::worker {
namespace {

using Progress = EngineCore::Progress;

// Every request works in every step: those that decode first, then prompts, oldest first.
class AllScheduler final : public Scheduler {
 public:
  size_t max_running() const override { return 16; }
  StepPlan Next(std::span<const Candidate> running, TimePoint /*now*/) override {
    StepPlan plan;
    for (const bool decoding : {true, false}) {
      for (size_t i = 0; i < running.size(); ++i) {
        if (running[i].decoding == decoding) plan.order.push_back(i);
      }
    }
    return plan;
  }
};

// Fails when a test says so, and otherwise does as the real one.
class FragileTransformer final : public Transformer {
 public:
  FragileTransformer(std::unique_ptr<Transformer> real, std::function<bool()> fails)
      : real_(std::move(real)), fails_(std::move(fails)) {}
  Status Forward(std::span<const SequenceChunk> chunks) override {
    if (fails_()) return Status(StatusCode::kInternal, "this pass fails");
    return real_->Forward(chunks);
  }
  int64_t max_rows() const override { return real_->max_rows(); }
  int64_t max_wide_rows() const override { return real_->max_wide_rows(); }
  const KvLayout& kv_layout() const override { return real_->kv_layout(); }
  int32_t vocab() const override { return real_->vocab(); }
  int threads() const override { return real_->threads(); }
  kernels::ThreadPool& thread_pool() override { return real_->thread_pool(); }
  const std::string& numerics_id() const override { return real_->numerics_id(); }

 private:
  const std::unique_ptr<Transformer> real_;
  const std::function<bool()> fails_;
};

class SharedPrefixTest : public EngineFixture {
 protected:
  std::unique_ptr<EngineCore> Core(std::unique_ptr<client::CacheClient> cache = nullptr,
                                   WorkerEngine::Options options = Options()) {
    auto parts = LoadEngineParts(options, std::move(cache), std::make_unique<AllScheduler>(),
                                 SteadyClock::Get());
    EXPECT_OK(parts);
    parts->transformer = std::make_unique<FragileTransformer>(
        std::move(parts->transformer), [this] { return failures_ > 0 && failures_-- > 0; });
    return std::make_unique<EngineCore>(*std::move(parts), &executor_);
  }
  // A prompt of the family, which ends in a way of its own.
  static GenerateRequest Branch(size_t common, size_t count, int32_t branch,
                                uint32_t max_tokens = 8) {
    GenerateRequest request = Request(count, 1, max_tokens);
    auto& ids = std::get<TokenPrompt>(request.prompt).ids;
    const auto other = std::get<TokenPrompt>(Request(count, 100 + branch).prompt).ids;
    for (size_t i = common; i < count; ++i) ids[i] = other[i];
    return request;
  }
  std::shared_ptr<Job> Submit(EngineCore& core, const GenerateRequest& request) {
    auto job = core.Submit(request);
    EXPECT_OK(job);
    return *std::move(job);
  }
  static void Drive(EngineCore& core) {
    while (core.Step() != Progress::kIdle) {
    }
  }
  // The answer of a job that is over.
  static GenerateSummary Answer(Job& job) {
    auto got = job.Consume({});
    EXPECT_OK(got);
    return got.ok() ? *got : GenerateSummary();
  }
  GenerateSummary Alone(const GenerateRequest& request) {
    if (alone_ == nullptr) alone_ = WorkerWithoutCache();
    return Run(*alone_, request);
  }
  void ExpectAsAlone(const GenerateSummary& got, const GenerateRequest& request) {
    const GenerateSummary want = Alone(request);
    ExpectSameAnswer(got, want);
    EXPECT_EQ(got.answer_logits_sha256, want.answer_logits_sha256);
  }

  ThreadPool executor_{{.name = "fetch", .threads = 4}};
  std::unique_ptr<WorkerEngine> alone_;
  int failures_ = 0;  // Passes that fail, from now on.
};

TEST_F(SharedPrefixTest, WhatPromptsShareIsComputedOnceWithoutACache) {
  auto core = Core();
  std::vector<GenerateRequest> requests;
  std::vector<std::shared_ptr<Job>> jobs;
  for (int32_t i = 0; i < 8; ++i) {
    requests.push_back(Branch(640, 660 + static_cast<size_t>(i), i));
    jobs.push_back(Submit(*core, requests.back()));
  }
  Drive(*core);
  uint64_t computed = 0, tails = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const GenerateSummary got = Answer(*jobs[i]);
    ExpectAsAlone(got, requests[i]);
    EXPECT_EQ(got.fetched_tokens, 0u);
    EXPECT_EQ(got.computed_tokens + got.shared_tokens, got.prompt_tokens);
    computed += got.computed_tokens;
    tails += got.prompt_tokens - 640;
  }
  EXPECT_EQ(computed, 640 + tails);
  EXPECT_EQ(core->GetStats().computed_tokens, computed);
  EXPECT_EQ(core->GetStats().shared_tokens, 7u * 640);
  EXPECT_EQ(core->GetStats().kv_pages_free, core->GetStats().kv_pages_total);
}

TEST_F(SharedPrefixTest, ALatePromptJoinsAtTheBlockUnderWay) {
  auto core = Core();
  const GenerateRequest first = Branch(900, 900, 1), second = Branch(704, 800, 2);
  const auto begun = Submit(*core, first);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(core->Step(), Progress::kWorked);  // One chunk is computed.
  const auto late = Submit(*core, second);
  Drive(*core);
  const GenerateSummary got = Answer(*late);
  EXPECT_EQ(got.shared_tokens + Answer(*begun).shared_tokens, 704u);
  ExpectAsAlone(got, second);
}

TEST_F(SharedPrefixTest, AnotherGoesOnWhenTheOneThatComputesIsCancelled) {
  auto core = Core();
  const GenerateRequest request = Branch(900, 900, 1), other = Branch(896, 900, 2);
  const auto first = Submit(*core, request);
  const auto second = Submit(*core, other);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(core->Step(), Progress::kWorked);
  first->Cancel();
  Drive(*core);
  EXPECT_EQ(Answer(*first).finish_reason, "cancelled");
  const GenerateSummary got = Answer(*second);
  EXPECT_GT(got.shared_tokens, 0u);
  EXPECT_LT(got.shared_tokens, 896u);
  ExpectAsAlone(got, other);
}

TEST_F(SharedPrefixTest, AnotherGoesOnWhenTheOneThatComputesFails) {
  auto core = Core();
  const auto first = Submit(*core, Branch(900, 900, 1));
  const auto second = Submit(*core, Branch(896, 900, 2));
  for (int i = 0; i < 4; ++i) ASSERT_EQ(core->Step(), Progress::kWorked);
  failures_ = 1;
  Drive(*core);
  const Result<GenerateSummary> failed = first->Consume({});
  const Result<GenerateSummary> other = second->Consume({});
  // One of the two was in the pass that failed, and the other waited for its blocks.
  ASSERT_NE(failed.ok(), other.ok());
  ExpectAsAlone(failed.ok() ? *failed : *other, Branch(896, 900, failed.ok() ? 1 : 2));
}

TEST_F(SharedPrefixTest, PagesAreHeldOnceAndReadByAll) {
  auto core = Core();
  const auto first = Submit(*core, Branch(640, 650, 1, 40));
  const auto second = Submit(*core, Branch(640, 650, 2, 40));
  uint64_t fewest = core->GetStats().kv_pages_total;
  while (core->Step() == Progress::kWorked) {
    if (core->GetStats().requests == 0) fewest = core->GetStats().kv_pages_free;
  }
  // Ten common pages, and one for each tail and answer.
  EXPECT_EQ(core->GetStats().kv_pages_total - fewest, 12u);
}

TEST_F(SharedPrefixTest, EachBlockIsPushedOnce) {
  auto core = Core(std::make_unique<SharedClient>(node_));
  std::vector<GenerateRequest> requests;
  std::vector<std::shared_ptr<Job>> jobs;
  for (int32_t i = 0; i < 4; ++i) {
    requests.push_back(Branch(640, 720, i));
    jobs.push_back(Submit(*core, requests.back()));
  }
  Drive(*core);
  for (const auto& job : jobs) Answer(*job);
  while (core->push_queue()->RunOnce()) {
  }
  EXPECT_EQ(core->GetStats().push.pushed_blocks, 10u + 4);
  EXPECT_EQ(node_.complete_blocks(), 10u + 4);

  // Blocks that the node has are fetched by those that come later.
  const auto again = Submit(*core, requests[2]);
  Drive(*core);
  const GenerateSummary got = Answer(*again);
  EXPECT_EQ(got.fetched_tokens, 704u);
  EXPECT_EQ(got.shared_tokens, 0u);
  ExpectAsAlone(got, requests[2]);
}

TEST_F(SharedPrefixTest, ALossyRecipeSharesOnlyWhatTheNodeDoesNotHave) {
  WorkerEngine::Options options = Options();
  options.recipe = "int8";
  auto core = Core(std::make_unique<SharedClient>(node_), options);
  const auto run = [&](int32_t branch) { return Submit(*core, Branch(640, 700, branch)); };
  const auto first = run(1), second = run(2);
  Drive(*core);
  const GenerateSummary exact = Answer(*second);
  EXPECT_EQ(Answer(*first).shared_tokens + exact.shared_tokens, 640u);
  ExpectAsAlone(exact, Branch(640, 700, 2));
  while (core->push_queue()->RunOnce()) {
  }
  const auto third = run(3), fourth = run(4);
  Drive(*core);
  for (const auto& job : {third, fourth}) {
    const GenerateSummary got = Answer(*job);
    EXPECT_EQ(got.fetched_tokens, 640u);
    EXPECT_EQ(got.shared_tokens, 0u);
  }
}

TEST_F(SharedPrefixTest, ARequestWaitsForThePagesOfOthers) {
  WorkerEngine::Options options = Options();
  const KvLayout kv{.layers = kLayers, .kv_heads = kKvHeads, .head_dim = 64};
  options.kv_pool_bytes = 12 * kv.page_bytes();
  auto core = Core(nullptr, options);
  std::vector<GenerateRequest> requests;
  std::vector<std::shared_ptr<Job>> jobs;
  for (int32_t i = 0; i < 5; ++i) {
    requests.push_back(Request(300 + 90 * static_cast<size_t>(i % 3), i + 1));
    jobs.push_back(Submit(*core, requests.back()));
  }
  const auto impossible = Submit(*core, Request(800, 9));
  Drive(*core);
  for (size_t i = 0; i < jobs.size(); ++i) ExpectAsAlone(Answer(*jobs[i]), requests[i]);
  EXPECT_EQ(impossible->Consume({}).status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace cairn::worker
