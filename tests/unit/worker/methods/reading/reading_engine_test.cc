// Workers that read contexts by rows.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "common/config/config.h"
#include "tests/unit/worker/engine/engine_fixture.h"

namespace cairn::worker {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

class ReadingEngineTest : public EngineFixture {
 protected:
  static WorkerEngine::Options With(const std::string& policy, uint64_t budget = 0) {
    WorkerEngine::Options options = Options();
    options.read_policy = policy;
    options.kv_budget = budget;
    return options;
  }
  static std::vector<float> Scores(WorkerEngine& worker, const GenerateRequest& context) {
    GenerateRequest request = context;
    for (int32_t t = 30; t < 60; ++t) request.score_tokens.push_back(t);
    std::vector<float> scores;
    GenerateCallbacks callbacks;
    callbacks.on_scores = [&](size_t, size_t, std::span<const float> logits) {
      scores.insert(scores.end(), logits.begin(), logits.end());
      return true;
    };
    EXPECT_OK(worker.Generate(request, callbacks));
    return scores;
  }
};

TEST_F(ReadingEngineTest, WithAllRowsReadTheAnswerIsThatOfResidentKv) {
  const GenerateRequest request = Request(300, 1, 24);
  const GenerateSummary resident = Run(*Worker(), request);
  node_.Clear();
  for (const char* policy : {"exact-topk:rows=1", "precision:rows=1", "quest:rows=1,page=7"}) {
    const auto worker = Worker(With(policy));
    const GenerateSummary read = Run(*worker, request);
    ExpectSameAnswer(read, resident);
    EXPECT_THAT(read.reading.policy, HasSubstr("rows=1,"));
    EXPECT_EQ(read.reading.far_tokens, 256u);
    EXPECT_EQ(read.reading.counters.steps, 23u) << "one less than tokens";
    EXPECT_EQ(read.reading.counters.late_rows, 0u);
    EXPECT_EQ(read.reading.counters.chosen_rows, 23u * kLayers * kKvHeads * 256);
    // Row 0 is there from the beginning.
    EXPECT_EQ(read.reading.counters.read_bytes, 255u * kLayers * kKvHeads * 256);
    const WorkerEngine::Stats stats = worker->GetStats();
    EXPECT_EQ(stats.far_tokens, 256u);
    EXPECT_EQ(stats.reading.read_bytes, read.reading.counters.read_bytes);
    Idle(*worker);
    EXPECT_EQ(worker->GetStats().kv_pages_free, worker->GetStats().kv_pages_total);
  }
}

TEST_F(ReadingEngineTest, FetchedAndComputedContextsAreReadAlike) {
  const GenerateRequest request = Request(500, 1, 8);
  const auto first = Worker(With("precision:rows=0.05"));
  const GenerateSummary computed = Run(*first, request);
  Idle(*first);
  const auto second = Worker(With("precision:rows=0.05"));
  const GenerateSummary fetched = Run(*second, request);
  EXPECT_EQ(fetched.fetched_tokens, 448u);
  ExpectSameAnswer(fetched, computed);
  EXPECT_EQ(fetched.reading.counters.read_bytes, computed.reading.counters.read_bytes);
  // The copy has a fifth of the bytes; what is on its way counts much with two layers only.
  EXPECT_LT(fetched.reading.near_bytes, 448u * kLayers * 2 * kKvHeads * 128 * 4 / 10);
}

TEST_F(ReadingEngineTest, GuessedQueriesReadAheadAndAnswer) {
  const GenerateRequest request = Request(400, 1, 8);
  for (const char* policy :
       {"precision:rows=0.05,query=attention", "precision:rows=0.05,query=input", "infinigen",
        "clusters:query=attention"}) {
    const auto worker = Worker(With(policy));
    const GenerateSummary summary = Run(*worker, request);
    EXPECT_EQ(summary.tokens.size(), 8u) << policy;
    EXPECT_GT(summary.reading.counters.read_bytes, 0u) << policy;
    Idle(*worker);
  }
}

TEST_F(ReadingEngineTest, AContextThatWorkersShareIsClusteredOnce) {
  const GenerateRequest request = Request(500, 1, 8);
  const auto first = Worker(With("clusters"));
  const GenerateSummary made = Run(*first, request);
  Idle(*first);
  EXPECT_EQ(made.reading.counters.fetched_indexes, 0u);
  EXPECT_EQ(made.reading.counters.stored_indexes, 1u);
  const GenerateSummary again = Run(*first, request);
  EXPECT_EQ(again.reading.counters.fetched_indexes, 1u) << "by the same worker";
  EXPECT_EQ(again.reading.counters.stored_indexes, 0u);
  const auto second = Worker(With("clusters"));
  const GenerateSummary fetched = Run(*second, request);
  EXPECT_EQ(fetched.reading.counters.fetched_indexes, 1u);
  ExpectSameAnswer(fetched, made);
  EXPECT_EQ(fetched.reading.counters.read_bytes, made.reading.counters.read_bytes);
  EXPECT_EQ(second->GetStats().reading.fetched_indexes, 1u);
  // A prompt that shares only its beginning is another context.
  EXPECT_EQ(Run(*second, Request(380, 1, 4)).reading.counters.fetched_indexes, 0u);
  GenerateRequest alone = request;
  alone.no_cache = true;
  const GenerateSummary computed = Run(*second, alone);
  EXPECT_EQ(computed.reading.counters.fetched_indexes, 0u);
  EXPECT_EQ(computed.reading.counters.stored_indexes, 0u);
  ExpectSameAnswer(computed, made);
}

TEST_F(ReadingEngineTest, ScoresGoThroughThePolicy) {
  const GenerateRequest context = Request(256);
  // Prefill and decode differ in their last bits; in bfloat16, by more.
  const auto scores = [&](const WorkerEngine::Options& given) {
    WorkerEngine::Options options = given;
    options.arithmetic = Arithmetic::kFloat32;
    return Scores(*Worker(options), context);
  };
  const std::vector<float> full = scores(Options());
  const std::vector<float> all = scores(With("exact-topk:rows=1"));
  const std::vector<float> few = scores(With("exact-topk:rows=0.01"));
  ASSERT_EQ(all.size(), full.size());
  ASSERT_EQ(few.size(), full.size());
  double error = 0, error_of_few = 0;
  for (size_t i = 0; i < full.size(); ++i) {
    error = std::max(error, std::fabs(static_cast<double>(all[i]) - full[i]));
    error_of_few = std::max(error_of_few, std::fabs(static_cast<double>(few[i]) - full[i]));
  }
  EXPECT_LT(error, 0.01);
  EXPECT_GT(error_of_few, 2 * error);
}

TEST_F(ReadingEngineTest, ABudgetThatIsTooSmallNamesTheLeastThatWorks) {
  const GenerateRequest request = Request(400, 1, 4);
  const auto poor = Worker(With("precision", 1000));
  const auto refused = poor->Generate(request, {});
  ASSERT_THAT(refused, StatusIs(StatusCode::kInvalidArgument,
                                HasSubstr("kv_budget: got 1000B, expected at least")));
  const std::string message = Message(refused.status());
  const size_t at = message.find("at least ") + 9;
  const std::string size = message.substr(at, message.find(':', at) - at);
  const uint64_t least = *config::ParseBytes(size);
  EXPECT_EQ(Run(*Worker(With("precision", least)), request).tokens.size(), 4u);
  // The number in the text is rounded up by less than a thousandth.
  EXPECT_THAT(Worker(With("precision", least - least / 1000 - 1))->Generate(request, {}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("expected at least " + size)));
  // Requests that may run at a time share what was typed, and the error speaks of that.
  WorkerEngine::Options shared = With("precision", least);
  shared.max_running = 3;
  EXPECT_THAT(Worker(shared)->Generate(request, {}),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("kv_budget: got " + size + " for the 3 requests that may run")));
  // A prompt without a whole block keeps its KV in pages, and the worker goes on.
  const GenerateSummary small = Run(*poor, Request(40, 2, 4));
  EXPECT_EQ(small.tokens.size(), 4u);
  EXPECT_EQ(small.reading.policy, "");
  EXPECT_EQ(small.reading.off, "the prompt has no whole block of 64 tokens");
}

TEST_F(ReadingEngineTest, WithoutABudgetTheLongestContextsCountAndGiveWay) {
  WorkerEngine::Options options = With("precision");
  options.max_running = 3;
  options.kv_pool_bytes = 64 << 20;
  options.parking_bytes = 1 << 20;
  options.request_bytes = options.least_request_bytes = 1 << 20;
  const auto near_of = [](const WorkerEngine& engine) {
    return engine.memory_bounds()[static_cast<size_t>(MemoryItem::kNear)];
  };
  const auto rich = WorkerWithoutCache(options);
  const uint64_t longest = near_of(*rich) / options.max_running;
  const auto context = static_cast<int32_t>(rich->GetInfo().context_tokens);
  const GenerateRequest request = Request(static_cast<size_t>(context - 8), 1, 4);
  const GenerateSummary read = Run(*rich, request);
  EXPECT_GT(read.reading.near_bytes, longest / 2);
  EXPECT_LE(read.reading.near_bytes, longest);
  // Others keep what they were told, so this gives way.
  options.memory_limit = Sum(rich->memory_bounds()) - near_of(*rich) / 2;
  const auto poor = WorkerWithoutCache(options);
  EXPECT_LE(Sum(poor->memory_bounds()), options.memory_limit);
  EXPECT_THAT(poor->Generate(request, {}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("kv_budget: got")));
  EXPECT_GT(Run(*poor, Request(100, 1, 4)).reading.near_bytes, 0u);
  MemoryAccount account(poor->memory_bounds());
  poor->MeasureMemory(&account);
  EXPECT_EQ(account.refusals(MemoryItem::kNear), 1u);
}

TEST_F(ReadingEngineTest, OptionsThatDoNotGoTogetherAreRefused) {
  const auto refused = [](const WorkerEngine::Options& options) {
    return WorkerEngine::Create(options, nullptr).status();
  };
  WorkerEngine::Options selects = With("precision");
  selects.recipe = "streaming:keep=0.4+raw";
  EXPECT_THAT(refused(selects), StatusIs(StatusCode::kInvalidArgument,
                                         HasSubstr("which selects tokens; expected one of")));
  EXPECT_THAT(refused(With("", 1 << 20)), StatusIs(StatusCode::kInvalidArgument,
                                                   HasSubstr("expected 0 without a read policy")));
  EXPECT_THAT(refused(With("precision:rows=2")),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'rows': got '2'")));
  EXPECT_THAT(refused(With("infinigen:rotation=0123456789abcdef")),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("calibration")));
}

TEST_F(ReadingEngineTest, AFinishedTurnIsPushedAndFoundByTheNext) {
  for (const char* policy : {"", "precision:rows=0.05"}) {
    node_.Clear();
    const auto worker = Worker(With(policy));
    GenerateRequest request = Request(250, 1, 20);
    request.keep_turn = true;
    const GenerateSummary turn = Run(*worker, request);
    Idle(*worker);
    EXPECT_EQ(worker->GetStats().idle_prefilled_tokens, 64u) << policy;
    GenerateRequest next = Request(250, 1, 4);
    auto& ids = std::get<TokenPrompt>(next.prompt).ids;
    ids.insert(ids.end(), turn.tokens.begin(), turn.tokens.end());
    ids.insert(ids.end(), 60, 77);
    const GenerateSummary second = Run(*worker, next);
    EXPECT_EQ(second.fetched_tokens, 256u) << policy;
    EXPECT_EQ(second.reading.far_tokens, *policy == 0 ? 0u : 320u);
  }
}

TEST_F(ReadingEngineTest, RequestsThatRunTogetherHaveAWorkingSetEach) {
  WorkerEngine::Options options = With("precision:rows=0.05");
  options.max_running = 3;
  const auto together = Worker(options);
  std::vector<GenerateSummary> got(3);
  {
    std::vector<std::jthread> callers;
    for (int32_t i = 0; i < 3; ++i) {
      callers.emplace_back(
          [&, i] { got[static_cast<size_t>(i)] = Run(*together, Request(300, i + 1, 12)); });
    }
  }
  Idle(*together);
  node_.Clear();
  for (int32_t i = 0; i < 3; ++i) {
    const auto alone = Worker(With("precision:rows=0.05"));
    ExpectSameAnswer(got[static_cast<size_t>(i)], Run(*alone, Request(300, i + 1, 12)));
    Idle(*alone);
    node_.Clear();
  }
}

}  // namespace
}  // namespace cairn::worker
