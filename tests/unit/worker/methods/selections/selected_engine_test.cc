// Workers whose recipe selects tokens, on one cache node.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "tests/unit/worker/engine/engine_fixture.h"

namespace cairn::worker {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

class SelectedEngineTest : public EngineFixture {
 protected:
  static WorkerEngine::Options With(const std::string& recipe) {
    WorkerEngine::Options options = Options();
    options.recipe = recipe;
    return options;
  }
  static std::unique_ptr<WorkerEngine> Alone(const std::string& recipe) {
    auto engine = WorkerEngine::Create(With(recipe), nullptr);
    EXPECT_OK(engine);
    return *std::move(engine);
  }
  static GenerateRequest Shared(size_t tokens, uint32_t prefix_end, int32_t seed = 1) {
    GenerateRequest request = Request(tokens, seed);
    request.prefix_end = prefix_end;
    return request;
  }
  GenerateSummary RunAndIdle(WorkerEngine& worker, const GenerateRequest& request) {
    const GenerateSummary summary = Run(worker, request);
    Idle(worker);
    return summary;
  }
};

TEST_F(SelectedEngineTest, ColdWarmAndUncachedAnswersAreEqual) {
  for (const char* recipe : {"random:keep=0.3+raw", "streaming:keep=0.4+raw"}) {
    node_.Clear();
    const GenerateRequest request = Shared(500, 410);
    const GenerateSummary cold = RunAndIdle(*Worker(With(recipe)), request);
    EXPECT_EQ(cold.fetched_tokens, 0u);
    EXPECT_EQ(cold.miss_reason, MissReason::kAbsent);
    EXPECT_EQ(cold.selected_tokens, 384u) << "whole blocks of the 410 tokens";
    EXPECT_NEAR(cold.kept_share, std::string(recipe).starts_with("random") ? 0.3 : 0.4, 0.005);
    EXPECT_EQ(node_.complete_blocks(), 6u) << "the segment and nothing else";
    const auto other = Worker(With(recipe));
    const GenerateSummary warm = Run(*other, request);
    EXPECT_EQ(warm.fetched_tokens, 384u);
    EXPECT_EQ(warm.computed_tokens, 500u - 384);
    EXPECT_EQ(warm.miss_reason, MissReason::kNone);
    ExpectSameAnswer(warm, cold);
    ExpectSameAnswer(Run(*Alone(recipe), request), cold);
    GenerateRequest uncached = request;
    uncached.no_cache = true;
    ExpectSameAnswer(Run(*other, uncached), cold);
    // And it is no selection in name only.
    EXPECT_NE(cold.prompt_logits_sha256, Run(*Alone("raw"), request).prompt_logits_sha256);
  }
}

TEST_F(SelectedEngineTest, AnotherWorkerPublishesTheSameSegments) {
  WorkerEngine::Options options = With("raw");
  options.publish = {"random:keep=0.3+raw", "streaming:keep=0.25+int8"};
  const GenerateRequest request = Shared(500, 410);
  const auto publisher = Worker(options);
  RunAndIdle(*publisher, request);
  EXPECT_EQ(node_.complete_blocks(), 7u + 6u + 6u) << "the prompt's own, and a segment for each";
  for (const std::string& recipe : options.publish) {
    const GenerateSummary warm = Run(*Worker(With(recipe)), request);
    EXPECT_EQ(warm.fetched_tokens, 384u) << recipe;
    EXPECT_EQ(warm.selected_tokens, 384u) << recipe;
    if (recipe.ends_with("raw")) ExpectSameAnswer(warm, Run(*Alone(recipe), request));
  }
  // It has not seen the queries of the part that it fetched: nothing to publish.
  node_.Clear();
  RunAndIdle(*Worker(With("raw")), request);
  RunAndIdle(*Worker(options), Shared(500, 410));
  EXPECT_EQ(node_.complete_blocks(), 7u);
}

TEST_F(SelectedEngineTest, PartOfASegmentIsAMiss) {
  const std::string recipe = "random:keep=0.5+raw";
  const auto worker = Worker(With(recipe));
  RunAndIdle(*worker, Shared(600, 512));
  ASSERT_EQ(node_.complete_blocks(), 8u);
  // The first half of the same tokens.
  GenerateRequest half = Shared(600, 512);
  std::get<TokenPrompt>(half.prompt).ids.resize(300);
  half.prefix_end = 256;
  const GenerateSummary got = RunAndIdle(*worker, half);
  EXPECT_EQ(got.fetched_tokens, 0u);
  EXPECT_EQ(got.miss_reason, MissReason::kAbsent);
  ExpectSameAnswer(got, Run(*Alone(recipe), half));
  EXPECT_EQ(node_.complete_blocks(), 8u + 4u) << "a segment of its own";
  // Half of the tokens, then others.
  GenerateRequest other = Shared(600, 512);
  for (size_t i = 256; i < 600; ++i) std::get<TokenPrompt>(other.prompt).ids[i] = 30;
  // It may begin with the segment that ends there.
  EXPECT_EQ(Run(*worker, other).fetched_tokens, 256u);
}

TEST_F(SelectedEngineTest, AChildSegmentExtendsItsParent) {
  const std::string recipe = "random:keep=0.25+raw";
  const auto first = Worker(With(recipe));
  RunAndIdle(*first, Shared(300, 256));
  const GenerateRequest longer = Shared(700, 640);
  const GenerateSummary extended = RunAndIdle(*first, longer);
  EXPECT_EQ(extended.fetched_tokens, 256u);
  EXPECT_EQ(extended.selected_tokens, 640u);
  EXPECT_NEAR(extended.kept_share, 0.25, 0.005) << "keep holds for each segment";
  EXPECT_EQ(node_.complete_blocks(), 4u + 6u);
  const auto other = Worker(With(recipe));
  const GenerateSummary warm = Run(*other, longer);
  EXPECT_EQ(warm.fetched_tokens, 640u);
  ExpectSameAnswer(warm, extended);
  // A third one below it, on another worker.
  const GenerateRequest longest = Shared(900, 832);
  const GenerateSummary third = RunAndIdle(*other, longest);
  EXPECT_EQ(third.fetched_tokens, 640u);
  const GenerateSummary again = Run(*first, longest);
  EXPECT_EQ(again.fetched_tokens, 832u);
  ExpectSameAnswer(again, third);
}

TEST_F(SelectedEngineTest, KeepingEverythingEqualsTheRecipeRaw) {
  const GenerateRequest request = Shared(500, 448);
  const GenerateSummary all = RunAndIdle(*Worker(With("streaming:keep=1+raw")), request);
  const GenerateSummary raw = Run(*Alone("raw"), request);
  EXPECT_EQ(all.selected_tokens, 448u);
  EXPECT_EQ(all.kept_share, 1.0);
  EXPECT_EQ(all.prompt_logits_sha256, raw.prompt_logits_sha256) << "to the last bit";
  EXPECT_EQ(all.tokens, raw.tokens);
}

TEST_F(SelectedEngineTest, APromptWithoutAWholeBlockIsLeftAlone) {
  const auto worker = Worker(With("random:keep=0.1+raw"));
  for (const size_t tokens : {1u, 63u, 64u}) {
    const GenerateRequest request = Request(tokens, 3);
    const GenerateSummary got = RunAndIdle(*worker, request);
    EXPECT_EQ(got.selected_tokens, 0u) << tokens;
    ExpectSameAnswer(got, Run(*Alone("raw"), request));
  }
  GenerateRequest said = Shared(100, 63);
  EXPECT_EQ(RunAndIdle(*worker, said).selected_tokens, 0u)
      << "the shared prefix has no whole block";
  EXPECT_EQ(node_.complete_blocks(), 0u);
}

TEST_F(SelectedEngineTest, WithoutAnEndTheWholeBlocksOfThePromptAreTheSegment) {
  const auto worker = Worker(With("streaming:keep=0.5+raw"));
  const GenerateRequest request = Request(300);
  const GenerateSummary cold = RunAndIdle(*worker, request);
  EXPECT_EQ(cold.selected_tokens, 256u);
  const GenerateSummary warm = Run(*worker, request);
  EXPECT_EQ(warm.fetched_tokens, 256u);
  ExpectSameAnswer(warm, cold);
  // 320 tokens: the last one is computed, so its block is not selected.
  EXPECT_EQ(Run(*worker, Request(320)).selected_tokens, 256u);
}

TEST_F(SelectedEngineTest, AnEndBeyondThePromptIsRefused) {
  const auto got = Worker(With("streaming:keep=0.5+raw"))->Generate(Shared(100, 101), {});
  EXPECT_THAT(got, StatusIs(StatusCode::kInvalidArgument,
                            HasSubstr("'prefix_end': got 101, expected at most the prompt's 100")));
}

TEST_F(SelectedEngineTest, EveryCodecStoresAndBringsSelectedRows) {
  for (const char* codec :
       {"raw", "int8", "int8:sink=1", "fp8", "int4", "mixed", "turbo:bits=3", "cachegen"}) {
    node_.Clear();
    const std::string recipe = std::string("random:keep=0.2+") + codec;
    const GenerateRequest request = Shared(500, 448);
    const GenerateSummary cold = RunAndIdle(*Worker(With(recipe)), request);
    EXPECT_EQ(node_.complete_blocks(), 7u) << codec;
    const auto other = Worker(With(recipe));
    const GenerateSummary warm = Run(*other, request);
    EXPECT_EQ(warm.fetched_tokens, 448u) << codec;
    ExpectSameAnswer(Run(*Worker(With(recipe)), request), warm);
    if (std::string(codec) == "raw") ExpectSameAnswer(warm, cold);
    // Codecs are told that token 0 is among the rows: a worker that decodes it otherwise would fail
    // to find the sizes right.
    const WorkerEngine::Stats stats = other->GetStats();
    EXPECT_EQ(stats.prefix.fetched_blocks, 7u);
    EXPECT_GT(stats.codecs.at(0).decode.bytes_out, 0u);
  }
}

TEST_F(SelectedEngineTest, ATroubledNodeCostsARecomputeAndNeverAnAnswer) {
  const std::string recipe = "random:keep=0.3+raw";
  const auto worker = Worker(With(recipe));
  RunAndIdle(*worker, Shared(300, 256));
  const GenerateRequest request = Shared(700, 640);
  const GenerateSummary want = RunAndIdle(*worker, request);
  ASSERT_EQ(want.fetched_tokens, 256u);
  struct Trouble {
    const char* name;
    Faults faults;
    uint32_t fetched;
    MissReason reason;
  };
  const Trouble troubles[] = {
      {"corrupt in the second", Fault(&Faults::corrupt_block, 7), 256, MissReason::kCorrupt},
      {"evicted in the second", Fault(&Faults::evict_block, 9), 256, MissReason::kEvicted},
      {"corrupt in the first", Fault(&Faults::corrupt_block, 0), 0, MissReason::kCorrupt},
      {"broken off", Fault(&Faults::break_fetch_after, 3), 0, MissReason::kUnavailable},
      {"hanging", Fault(&Faults::hang_fetch_after, 15), 0, MissReason::kDeadline},
      {"away", Fault(&Faults::every_call, Status(StatusCode::kUnavailable, "away")), 0,
       MissReason::kUnavailable},
  };
  for (const Trouble& trouble : troubles) {
    const bool hangs = trouble.reason == MissReason::kDeadline;
    WorkerEngine::Options options = With(recipe);
    // Long enough for what comes before, on a busy machine too.
    if (hangs) options.prefix.stall_deadline = options.prefix.max_stall = std::chrono::seconds(1);
    const auto other = Worker(options);
    node_.SetFaults(trouble.faults);
    const GenerateSummary got = Run(*other, request);
    node_.SetFaults({});
    EXPECT_EQ(got.fetched_tokens, trouble.fetched) << trouble.name;
    EXPECT_EQ(got.miss_reason, trouble.reason) << trouble.name;
    EXPECT_EQ(got.selected_tokens, 640u) << trouble.name;
    // The part after the first segment is as it was; else the whole prefix is one segment.
    if (trouble.fetched == 256) {
      ExpectSameAnswer(got, want);
    } else {
      ExpectSameAnswer(got, Run(*Alone(recipe), request));
    }
    Idle(*other);
  }
}

TEST_F(SelectedEngineTest, BytesThatNoEncoderWroteAreAMiss) {
  const std::string recipe = "random:keep=0.5+int4";
  const auto worker = Worker(With(recipe));
  const GenerateRequest request = Shared(300, 256);
  RunAndIdle(*worker, request);
  // The middle byte of each slice of the block changes, under a valid checksum: masks, lengths or
  // numbers. Whatever comes of it, the request is answered.
  node_.SetFaults(Fault(&Faults::wrong_block, 1));
  const auto got = worker->Generate(request, {});
  EXPECT_OK(got);
}

TEST_F(SelectedEngineTest, PagesFollowWhatIsKept) {
  WorkerEngine::Options options = With("streaming:keep=0.25+raw");
  GenerateRequest request = Shared(1000, 960);
  request.max_tokens = 24;
  const auto worker = Worker(options);
  // 960 tokens had 15 pages; 240 rows of each head fit in 4. Then 40 tokens and the answer.
  constexpr uint64_t kPages = 4 + 1;
  uint64_t used = 0;
  GenerateCallbacks callbacks;
  callbacks.on_token = [&](model::TokenId, std::string_view) {
    const WorkerEngine::Stats stats = worker->GetStats();
    used = std::max(used, stats.kv_pages_total - stats.kv_pages_free);
    return true;
  };
  for (const bool warm : {false, true}) {
    used = 0;
    // Tokens are told in another thread than the one that computes, which may be through before the
    // first is told: then some or all pages are free already.
    for (int32_t seed = 2; used < kPages && seed < 100; ++seed) {
      if (!warm) request.prompt = Shared(1000, 960, seed).prompt;
      const auto got = worker->Generate(request, callbacks);
      ASSERT_OK(got);
      EXPECT_EQ(got->fetched_tokens, warm ? 960u : 0u);
      Idle(*worker);
    }
    EXPECT_EQ(used, kPages) << (warm ? "warm" : "cold");
    EXPECT_EQ(worker->GetStats().kv_pages_free, worker->GetStats().kv_pages_total);
  }
}

TEST_F(SelectedEngineTest, AFinishedTurnIsNotKept) {
  const auto worker = Worker(With("streaming:keep=0.5+raw"));
  GenerateRequest request = Request(300, 1, 64);
  request.keep_turn = true;
  RunAndIdle(*worker, request);
  EXPECT_EQ(worker->GetStats().idle_prefilled_tokens, 0u);
  EXPECT_EQ(node_.complete_blocks(), 4u);
}

// A worker with a calibration made at hand for the model of these tests.
class CalibratedEngineTest : public SelectedEngineTest {
 protected:
  CalibratedEngineTest()
      : folder_(std::filesystem::temp_directory_path() /
                ("cairn-calibrated-" + std::to_string(getpid()) + "-" +
                 std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()))) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
  }
  ~CalibratedEngineTest() override { std::filesystem::remove_all(folder_); }

  // Writes a file and returns a recipe that names it.
  std::string Recipe(const std::string& method, const std::string& scores,
                     const std::string& codec = "raw") {
    const std::string text = "cairn head-scores 1\nmethod " + method + "\nweights " +
                             Alone("raw")->GetInfo().weights_digest.Hex() +
                             "\nlayers 2\nkv_heads 2\n" + scores;
    const std::string digest = Sha256::Of(text).Hex();
    std::ofstream(folder_ / (digest + ".heads"), std::ios::binary) << text;
    return method + ":keep=0.5,recent=32,heads=" + digest.substr(0, 16) + "+" + codec;
  }
  WorkerEngine::Options Calibrated(const std::string& recipe) const {
    WorkerEngine::Options options = With(recipe);
    options.calibration = folder_.string();
    return options;
  }

  const std::filesystem::path folder_;
};

TEST_F(CalibratedEngineTest, HeadClassesAreSharedByTheirCalibration) {
  const GenerateRequest request = Shared(500, 410);
  const std::string recipe = Recipe("duo", "0.9 0.1\n0.2 0.8\n");
  const GenerateSummary cold = RunAndIdle(*Worker(Calibrated(recipe)), request);
  EXPECT_EQ(cold.fetched_tokens, 0u);
  EXPECT_EQ(cold.selected_tokens, 384u);
  EXPECT_EQ(cold.kept_share, 0.5) << "the budget to the row";
  const GenerateSummary warm = Run(*Worker(Calibrated(recipe)), request);
  EXPECT_EQ(warm.fetched_tokens, 384u);
  ExpectSameAnswer(warm, cold);
  // Other scores are another name, and other rows.
  const std::string other = Recipe("duo", "0.1 0.9\n0.8 0.2\n");
  const GenerateSummary others = RunAndIdle(*Worker(Calibrated(other)), request);
  EXPECT_EQ(others.fetched_tokens, 0u);
  EXPECT_NE(others.prompt_logits_sha256, cold.prompt_logits_sha256);
  // The same scores under the other method keep the same rows, under another name.
  const std::string razor = Recipe("razor", "0.9 0.1\n0.2 0.8\n");
  const GenerateSummary same = RunAndIdle(*Worker(Calibrated(razor)), request);
  EXPECT_EQ(same.fetched_tokens, 0u);
  ExpectSameAnswer(same, cold);
}

TEST_F(CalibratedEngineTest, APublisherNeedsTheFileOfEachRecipe) {
  WorkerEngine::Options options = Calibrated("raw");
  options.publish = {Recipe("duo", "4 3\n2 1\n"), Recipe("razor", "1 2\n3 4\n", "int8")};
  RunAndIdle(*Worker(options), Shared(500, 410));
  for (const std::string& recipe : options.publish) {
    const GenerateSummary warm = Run(*Worker(Calibrated(recipe)), Shared(500, 410));
    EXPECT_EQ(warm.fetched_tokens, 384u) << recipe;
  }
  options.calibration = (folder_ / "nowhere").string();
  EXPECT_THAT(WorkerEngine::Create(options, std::make_unique<SharedClient>(node_)),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("calibration: folder")));
}

TEST_F(CalibratedEngineTest, AWorkerWithoutItsCalibrationDoesNotStart) {
  const std::string unknown = "duo:keep=0.5,heads=0123456789abcdef+raw";
  for (const bool cached : {false, true}) {
    const auto got = WorkerEngine::Create(Calibrated(unknown),
                                          cached ? std::make_unique<SharedClient>(node_) : nullptr);
    EXPECT_THAT(got, StatusIs(StatusCode::kFailedPrecondition,
                              HasSubstr("has no file 0123456789abcdef*.heads")));
  }
  std::string recipe = Recipe("duo", "1 2\n3 4\n");
  recipe.replace(0, 3, "razor");
  EXPECT_THAT(WorkerEngine::Create(Calibrated(recipe), nullptr),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("made for the selection 'duo'")));
}

// Any order of requests to workers with different recipes on one node: each gets what a worker of
// its recipe computes alone.
TEST_F(SelectedEngineTest, BlocksOfOtherRecipesNeverMix) {
  const std::vector<std::string> recipes = {
      "random:keep=0.3+raw",    "random:keep=0.3,seed=2+raw",
      "streaming:keep=0.3+raw", "streaming:keep=0.3,sinks=0+raw",
      "random:keep=0.31+raw",   "raw"};
  std::vector<std::unique_ptr<WorkerEngine>> cached, alone;
  for (const std::string& recipe : recipes) {
    cached.push_back(Worker(With(recipe)));
    alone.push_back(Alone(recipe));
  }
  std::map<std::pair<size_t, int32_t>, std::optional<Digest>> want;
  std::mt19937 rng(11);
  uint64_t fetched = 0;
  for (int step = 0; step < 60; ++step) {
    const size_t which = rng() % recipes.size();
    const auto seed = static_cast<int32_t>(1 + rng() % 4);
    const GenerateRequest request = Shared(330, static_cast<uint32_t>(100 + 50 * seed), seed);
    const GenerateSummary got = Run(*cached[which], request);
    if (rng() % 2 == 0) Idle(*cached[which]);
    fetched += got.fetched_tokens;
    auto& expected = want[{which, seed}];
    if (!expected) expected = Run(*alone[which], request).prompt_logits_sha256;
    EXPECT_EQ(got.prompt_logits_sha256, expected) << recipes[which] << ", prompt " << seed;
  }
  EXPECT_GT(fetched, 0u);
  std::set<Digest> distinct;
  for (const auto& [key, digest] : want) distinct.insert(*digest);
  EXPECT_EQ(distinct.size(), want.size()) << "the recipes do differ";
}

}  // namespace
}  // namespace cairn::worker
