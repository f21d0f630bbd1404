#include "services/worker/engine/worker_engine.h"

#include <atomic>
#include <cmath>
#include <map>
#include <thread>

#include "tests/unit/worker/engine/engine_fixture.h"

namespace cairn::worker {
namespace {

using ::testing::HasSubstr;

class WorkerEngineTest : public EngineFixture {};

TEST_F(WorkerEngineTest, WarmAnswersAreThoseOfAWorkerWithoutCache) {
  auto cold = WorkerWithoutCache();
  auto worker = Worker();
  auto other = Worker();
  // Around block borders: the last token is always computed.
  for (const size_t count : {63u, 64u, 65u, 128u, 129u, 200u, 640u}) {
    const GenerateRequest request = Request(count, static_cast<int32_t>(count));
    const GenerateSummary want = Run(*cold, request);
    const GenerateSummary first = Run(*worker, request);
    EXPECT_EQ(first.fetched_tokens, 0u);
    ExpectSameAnswer(first, want);
    Idle(*worker);
    for (WorkerEngine* w : {worker.get(), other.get()}) {
      const GenerateSummary warm = Run(*w, request);
      ExpectSameAnswer(warm, want);
      EXPECT_EQ(warm.fetched_tokens, (count - 1) / kBlockTokens * kBlockTokens) << count;
      EXPECT_EQ(warm.computed_tokens, count - warm.fetched_tokens);
      EXPECT_EQ(warm.miss_reason, MissReason::kNone);
      EXPECT_EQ(warm.fetched.total() > 0, warm.fetched_tokens > 0);
    }
  }
}

TEST_F(WorkerEngineTest, SharedPrefixIsFetchedAndTheRestComputed) {
  auto cold = WorkerWithoutCache();
  auto worker = Worker();
  GenerateRequest request = Request(300);
  Run(*worker, request);
  Idle(*worker);
  auto& ids = std::get<TokenPrompt>(request.prompt).ids;
  ids.resize(200);
  ids.insert(ids.end(), 250, 77);
  const GenerateSummary warm = Run(*worker, request);
  EXPECT_EQ(warm.fetched_tokens, 192u);
  EXPECT_EQ(warm.miss_reason, MissReason::kAbsent);
  ExpectSameAnswer(warm, Run(*cold, request));
}

TEST_F(WorkerEngineTest, ScoresOnAFetchedContextAreThoseOfAComputedOne) {
  auto worker = Worker();
  auto other = Worker();
  GenerateRequest request = Request(2 * kBlockTokens);
  for (size_t i = 0; i < kBlockTokens + 5; ++i) request.score_tokens.push_back(20 + i);
  const auto score = [&](WorkerEngine& engine, GenerateSummary* summary) {
    std::vector<float> all;
    GenerateCallbacks callbacks;
    callbacks.on_scores = [&](size_t first, size_t rows, std::span<const float> logits) {
      const auto vocab = static_cast<size_t>(engine.model().tokenizer().vocab_size());
      EXPECT_EQ(first * vocab, all.size());
      EXPECT_EQ(rows * vocab, logits.size());
      all.insert(all.end(), logits.begin(), logits.end());
      return true;
    };
    auto done = engine.Generate(request, callbacks);
    EXPECT_OK(done);
    if (done.ok()) *summary = *std::move(done);
    return all;
  };
  GenerateSummary computed, fetched;
  const std::vector<float> cold = score(*worker, &computed);
  EXPECT_EQ(computed.fetched_tokens, 0u);
  EXPECT_TRUE(computed.tokens.empty());
  Idle(*worker);
  const std::vector<float> warm = score(*other, &fetched);
  EXPECT_EQ(fetched.fetched_tokens, 2 * kBlockTokens);  // The context's last block too.
  EXPECT_EQ(fetched.computed_tokens, 0u);
  ASSERT_EQ(cold.size(), warm.size());
  EXPECT_EQ(std::memcmp(cold.data(), warm.data(), cold.size() * sizeof(float)), 0);

  // The row after the first scored token is what a prompt that ends with it gives.
  GenerateRequest prompt = request;
  prompt.score_tokens.clear();
  prompt.max_tokens = 1;
  prompt.no_cache = true;
  std::get<TokenPrompt>(prompt.prompt).ids.push_back(request.score_tokens[0]);
  const size_t vocab = cold.size() / request.score_tokens.size();
  EXPECT_EQ(Run(*worker, prompt).prompt_logits_sha256,
            Sha256().Update(std::as_bytes(std::span(cold).first(vocab))).Finish());
  // The continuation was not pushed.
  EXPECT_EQ(node_.GetStats().pushed_parts, 2u);
}

TEST_F(WorkerEngineTest, LossyRecipesHaveBlocksAndALineageOfTheirOwn) {
  WorkerEngine::Options options = Options();
  options.recipe = "int8";
  auto writer = Worker(options);
  auto raw = Worker();
  EXPECT_NE(writer->GetInfo().fingerprint, raw->GetInfo().fingerprint);

  // Three blocks of exact lineage.
  GenerateRequest start = Request(3 * kBlockTokens + 1);
  Run(*writer, start);
  Idle(*writer);
  EXPECT_EQ(Run(*raw, start).fetched_tokens, 0u);
  Idle(*raw);

  // Another worker fetches them and computes two more over what it decoded.
  GenerateRequest longer = Request(5 * kBlockTokens + 1);
  auto second = Worker(options);
  const GenerateSummary over = Run(*second, longer);
  EXPECT_EQ(over.fetched_tokens, 3 * kBlockTokens);
  EXPECT_LT(over.fetched.total(), 3 * kLayers * kLayerBytes * 6 / 10);
  Idle(*second);

  // A third one finds all five: three exact ones, then those computed over them.
  auto third = Worker(options);
  const GenerateSummary all = Run(*third, longer);
  EXPECT_EQ(all.fetched_tokens, 5 * kBlockTokens);
  Idle(*third);

  // The same blocks computed over exact KV are others, and are found first.
  GenerateRequest cold = longer;
  cold.no_cache = true;
  auto& ids = std::get<TokenPrompt>(longer.prompt).ids;
  const std::vector<int32_t> tokens(ids.begin(), ids.end() - 1);
  const Digest fingerprint = *third->GetInfo().fingerprint;
  const std::vector<BlockKey> exact = BlockKeyChain(fingerprint).Keys(tokens, kBlockTokens);
  const auto held = node_.Exists(fingerprint, exact, {});
  ASSERT_OK(held);
  EXPECT_TRUE((*held)[2].has_value());
  EXPECT_FALSE((*held)[3].has_value());
  EXPECT_FALSE((*held)[4].has_value());
}

TEST_F(WorkerEngineTest, LossyRecipesKeepTheAnswersNear) {
  WorkerEngine::Options options = Options();
  options.recipe = "int8";
  auto writer = Worker(options);
  auto reader = Worker(options);
  GenerateRequest request = Request(2 * kBlockTokens);
  request.score_tokens = {30, 31, 32};
  const auto score = [&](WorkerEngine& engine) {
    std::vector<float> all;
    GenerateCallbacks callbacks;
    callbacks.on_scores = [&](size_t, size_t, std::span<const float> logits) {
      all.insert(all.end(), logits.begin(), logits.end());
      return true;
    };
    EXPECT_OK(engine.Generate(request, callbacks));
    return all;
  };
  const std::vector<float> exact = score(*writer);
  Idle(*writer);
  const std::vector<float> decoded = score(*reader);
  ASSERT_EQ(exact.size(), decoded.size());
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    error += std::pow(exact[i] - decoded[i], 2);
    norm += std::pow(exact[i], 2);
  }
  EXPECT_GT(error, 0);  // It did go through the codec.
  EXPECT_LT(std::sqrt(error / norm), 0.02);
}

// The stored bytes of a prompt's blocks: "block layer bytes".
class StoredBytes final : public client::FetchSink {
 public:
  StoredBytes(InMemoryCacheClient& node, const Digest& fingerprint,
              std::span<const int32_t> tokens) {
    const std::vector<BlockKey> keys = BlockKeyChain(fingerprint).Keys(tokens, kBlockTokens);
    const auto match = node.Match(fingerprint, keys, {});
    EXPECT_OK(match);
    blocks_ = match->matched_blocks;
    if (blocks_ == 0) return;
    EXPECT_OK(node.Fetch(match->lease, {}, *this, {}));
  }
  Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override {
    slices_[{slice.block, slice.layer}] = {data.begin(), data.end()};
    return OkStatus();
  }
  void OnBlockFailed(uint32_t block, client::MissReason) override { FAIL() << block; }

  uint32_t blocks() const { return blocks_; }
  bool operator==(const StoredBytes& other) const { return slices_ == other.slices_; }

 private:
  uint32_t blocks_ = 0;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<std::byte>> slices_;
};

TEST_F(WorkerEngineTest, PublishedBlocksAreThoseThatAWorkerOfThatRecipePushes) {
  const GenerateRequest request = Request(3 * kBlockTokens + 1);
  const auto& ids = std::get<TokenPrompt>(request.prompt).ids;
  WorkerEngine::Options options = Options();
  options.publish = {"int8", "turbo:bits=3"};
  auto writer = Worker(options);
  Run(*writer, request);
  Idle(*writer);
  EXPECT_EQ(writer->GetStats().push.pushed_blocks, 9u);

  for (const std::string& recipe : options.publish) {
    WorkerEngine::Options own = Options();
    own.recipe = recipe;
    InMemoryCacheClient elsewhere;
    auto lone = WorkerEngine::Create(own, std::make_unique<SharedClient>(elsewhere));
    ASSERT_OK(lone);
    const Digest fingerprint = *(*lone)->GetInfo().fingerprint;
    Run(**lone, request);
    Idle(**lone);
    const StoredBytes published(node_, fingerprint, ids);
    const StoredBytes pushed(elsewhere, fingerprint, ids);
    EXPECT_EQ(published.blocks(), 3u);
    EXPECT_TRUE(published == pushed) << recipe;
    EXPECT_EQ(Run(*Worker(own), request).fetched_tokens, 3 * kBlockTokens);
  }
}

TEST_F(WorkerEngineTest, WhatWasComputedOverDecodedKvIsNotPublished) {
  WorkerEngine::Options options = Options();
  options.recipe = "int8";
  auto writer = Worker(options);
  Run(*writer, Request(3 * kBlockTokens + 1));
  Idle(*writer);
  options.publish = {"raw"};
  auto second = Worker(options);
  EXPECT_EQ(Run(*second, Request(5 * kBlockTokens + 1)).fetched_tokens, 3 * kBlockTokens);
  Idle(*second);
  EXPECT_EQ(second->GetStats().push.pushed_blocks, 2u);
  // But what it computes alone is.
  const GenerateRequest other = Request(2 * kBlockTokens + 1, 7);
  Run(*second, other);
  Idle(*second);
  EXPECT_EQ(Run(*Worker(), other).fetched_tokens, 2 * kBlockTokens);
}

TEST_F(WorkerEngineTest, RecipesThatCannotBeAreRefused) {
  WorkerEngine::Options options = Options();
  options.recipe = "int9";
  EXPECT_THAT(WorkerEngine::Create(options, std::make_unique<SharedClient>(node_)),
              testing::StatusIs(StatusCode::kInvalidArgument, HasSubstr("int9")));
  options.recipe = "int8";
  for (const char* published : {"int9", "int8:group=64"}) {
    options.publish = {published};
    EXPECT_THAT(WorkerEngine::Create(options, std::make_unique<SharedClient>(node_)),
                testing::StatusIs(StatusCode::kInvalidArgument, HasSubstr(published)));
  }
}

TEST_F(WorkerEngineTest, ScoringThatIsCancelledEnds) {
  auto worker = Worker();
  GenerateRequest request = Request(kBlockTokens);
  request.score_tokens.assign(800, 30);
  GenerateCallbacks callbacks;
  callbacks.on_scores = [](size_t, size_t, std::span<const float>) { return false; };
  const auto done = worker->Generate(request, callbacks);
  ASSERT_OK(done);
  EXPECT_EQ(done->finish_reason, "cancelled");
}

TEST_F(WorkerEngineTest, OverlapDoesNotChangeAnAnswer) {
  WorkerEngine::Options options = Options();
  options.prefix.overlap = false;
  auto serial = Worker(options);
  auto overlapped = Worker();
  const GenerateRequest request = Request(500);
  const GenerateSummary want = Run(*serial, request);
  Idle(*serial);
  ExpectSameAnswer(Run(*serial, request), want);
  ExpectSameAnswer(Run(*overlapped, request), want);
}

TEST_F(WorkerEngineTest, FetchThatBreaksAtAnySliceDoesNotChangeTheAnswer) {
  auto worker = Worker();
  auto impatient = Worker(Impatient());
  const GenerateRequest request = Request(330, 1, 4);
  const GenerateSummary want = Run(*worker, request);
  Idle(*worker);
  const uint64_t slices = 5 * 2;  // Blocks x layers.
  for (uint64_t n = 0; n < slices; ++n) {
    node_.SetFaults(Fault(&Faults::break_fetch_after, n));
    const GenerateSummary got = Run(*worker, request);
    ExpectSameAnswer(got, want);
    EXPECT_LT(got.fetched_tokens, 320u);
    EXPECT_EQ(got.miss_reason, MissReason::kUnavailable) << n;
    Idle(*worker);  // The next one would take pages that a push still holds.
    node_.SetFaults(Fault(&Faults::hang_fetch_after, n));
    const GenerateSummary late = Run(*impatient, request);
    ExpectSameAnswer(late, want);
    EXPECT_EQ(late.miss_reason, MissReason::kDeadline) << n;
    Idle(*impatient);
  }
  EXPECT_EQ(node_.leases(), 0u);
}

TEST_F(WorkerEngineTest, BlocksThatFailAreComputedFromTheFirstOn) {
  auto worker = Worker();
  const GenerateRequest request = Request(330);
  const GenerateSummary want = Run(*worker, request);
  Idle(*worker);
  for (uint32_t block = 0; block < 5; ++block) {
    node_.SetFaults(Fault(&Faults::corrupt_block, block));
    const GenerateSummary corrupt = Run(*worker, request);
    ExpectSameAnswer(corrupt, want);
    EXPECT_EQ(corrupt.fetched_tokens, block * kBlockTokens);
    EXPECT_EQ(corrupt.miss_reason, MissReason::kCorrupt);
    Idle(*worker);  // The next one would take pages that a push still holds.
    node_.SetFaults(Fault(&Faults::evict_block, block));
    const GenerateSummary evicted = Run(*worker, request);
    ExpectSameAnswer(evicted, want);
    EXPECT_EQ(evicted.miss_reason, MissReason::kEvicted);
    Idle(*worker);
  }
}

TEST_F(WorkerEngineTest, NodeThatIsAwayOrHangsChangesNothingButTheTime) {
  const GenerateRequest request = Request(330);
  const GenerateSummary want = Run(*WorkerWithoutCache(), request);
  node_.SetFaults(Fault(&Faults::every_call, Status(StatusCode::kUnavailable, "gone")));
  auto worker = Worker(Impatient());
  const GenerateSummary away = Run(*worker, request);
  ExpectSameAnswer(away, want);
  EXPECT_EQ(away.miss_reason, MissReason::kUnavailable);
  Idle(*worker);
  node_.SetFaults(Fault(&Faults::hang, true));
  const GenerateSummary hanging = Run(*worker, request);
  ExpectSameAnswer(hanging, want);
  EXPECT_EQ(hanging.miss_reason, MissReason::kDeadline);
  // Pushes hang too: what is asked next does not wait for them.
  ExpectSameAnswer(Run(*worker, request), want);
  node_.SetFaults({});
  Idle(*worker);
  EXPECT_GT(worker->GetStats().prefix.missed_blocks[static_cast<size_t>(MissReason::kDeadline)],
            0u);
}

// The proof that comparing digests finds wrong KV: bytes that pass their checksum, but are not
// those of this prefix.
TEST_F(WorkerEngineTest, WrongBytesUnderAValidChecksumChangeTheDigest) {
  const GenerateRequest request = Request(330);
  const GenerateSummary want = Run(*WorkerWithoutCache(), request);
  for (uint32_t block = 0; block < 5; ++block) {
    node_.Clear();
    auto worker = Worker();
    const auto& ids = std::get<TokenPrompt>(request.prompt).ids;
    const Digest fingerprint = *worker->GetInfo().fingerprint;
    const std::vector<BlockKey> keys = BlockKeyChain(fingerprint).Keys(ids, kBlockTokens);
    PushOfOnes(fingerprint, keys[block]);
    Run(*worker, request);
    Idle(*worker);
    const GenerateSummary wrong = Run(*worker, request);
    EXPECT_EQ(wrong.fetched_tokens, 320u);
    EXPECT_NE(wrong.prompt_logits_sha256, want.prompt_logits_sha256) << "block " << block;
  }
}

TEST_F(WorkerEngineTest, NoCacheNeitherFetchesNorPushes) {
  auto worker = Worker();
  GenerateRequest request = Request(200);
  request.no_cache = true;
  request.keep_turn = true;
  const GenerateSummary first = Run(*worker, request);
  Idle(*worker);
  EXPECT_EQ(node_.complete_blocks(), 0u);
  EXPECT_EQ(first.miss_reason, MissReason::kNone);
  EXPECT_EQ(node_.GetStats().matches, 0u);
}

TEST_F(WorkerEngineTest, BlocksMadeByDecodeStepsAreNotPushed) {
  auto worker = Worker();
  Run(*worker, Request(100, 1, 100));
  Idle(*worker);
  EXPECT_EQ(node_.complete_blocks(), 1u);
}

TEST_F(WorkerEngineTest, KeptTurnIsThereForTheNextOneAndExact) {
  auto worker = Worker();
  auto cold = WorkerWithoutCache();
  GenerateRequest request = Request(100, 1, 100);
  request.keep_turn = true;
  const GenerateSummary turn = Run(*worker, request);
  Idle(*worker);
  EXPECT_EQ(node_.complete_blocks(), 3u);  // The full blocks of 200 tokens.
  EXPECT_EQ(worker->GetStats().idle_prefilled_tokens, 128u);
  auto& ids = std::get<TokenPrompt>(request.prompt).ids;
  ids.insert(ids.end(), turn.tokens.begin(), turn.tokens.end());
  ids.insert(ids.end(), 30, 55);
  const GenerateSummary next = Run(*worker, request);
  EXPECT_EQ(next.fetched_tokens, 192u);
  ExpectSameAnswer(next, Run(*cold, request));
}

TEST_F(WorkerEngineTest, KeptChatTurnIsRenderedAsTheNextTurnWillHaveIt) {
  auto worker = Worker();
  auto cold = WorkerWithoutCache();
  GenerateRequest request;
  ChatPrompt chat;
  chat.messages = {{"system", "You are a lighthouse."}, {"user", "What do you see tonight?"}};
  request.prompt = chat;
  request.max_tokens = 150;
  request.want_logits_digest = true;
  request.keep_turn = true;
  const GenerateSummary turn = Run(*worker, request);
  Idle(*worker);
  chat.messages.push_back({"assistant", turn.text});
  chat.messages.push_back({"user", "And now?"});
  request.prompt = chat;
  const GenerateSummary next = Run(*worker, request);
  ExpectSameAnswer(next, Run(*cold, request));
  // All full blocks up to the end of the finished turn; the new question is at the end.
  EXPECT_GE(next.fetched_tokens, turn.prompt_tokens / kBlockTokens * kBlockTokens + kBlockTokens);
  EXPECT_LT(next.computed_tokens, 2 * kBlockTokens);
}

TEST_F(WorkerEngineTest, IdleWorkYieldsToARequestAndGoesOnAfterIt) {
  auto worker = Worker();
  GenerateRequest request = Request(70, 1, 800);
  request.keep_turn = true;
  Run(*worker, request);
  // The turn's 13 blocks are being prefilled: more requests come meanwhile.
  for (int32_t seed = 2; seed < 6; ++seed) Run(*worker, Request(70, seed, 2));
  Idle(*worker);
  EXPECT_EQ(node_.complete_blocks(), 13u + 4u);
}

TEST_F(WorkerEngineTest, FullQueueRefuses) {
  WorkerEngine::Options options = Options();
  options.queue_capacity = 1;
  options.prefix.match_deadline = std::chrono::minutes(5);
  auto worker = Worker(options);
  std::atomic<bool> release{false};
  std::atomic<int> refused{0}, served{0};
  std::vector<std::thread> callers;
  // The first one runs until somebody was refused, however late the others begin.
  node_.SetFaults(Fault(&Faults::hang, true));
  for (int i = 0; i < 6; ++i) {
    if (i == 1) node_.WaitForHang();
    callers.emplace_back([&, i] {
      GenerateCallbacks callbacks;
      callbacks.cancelled = [&] { return release.load(); };
      const auto summary = worker->Generate(Request(600, i, 4), callbacks);
      if (summary.ok()) {
        ++served;
      } else {
        EXPECT_THAT(summary,
                    testing::StatusIs(StatusCode::kResourceExhausted, HasSubstr("request queue")));
        ++refused;
        release = true;
        node_.SetFaults({});
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_GT(refused, 0);
  EXPECT_GT(served, 0);
  EXPECT_EQ(worker->GetStats().requests_refused, static_cast<uint64_t>(refused));
}

TEST_F(WorkerEngineTest, CancelledRequestStopsAndFreesItsPages) {
  auto worker = Worker();
  int tokens = 0;
  GenerateCallbacks callbacks;
  callbacks.on_token = [&](model::TokenId, std::string_view) { return ++tokens < 3; };
  const auto summary = worker->Generate(Request(100, 1, 900), callbacks);
  ASSERT_OK(summary);
  EXPECT_EQ(summary->finish_reason, "cancelled");
  EXPECT_LT(summary->tokens.size(), 900u);
  Idle(*worker);
  const WorkerEngine::Stats stats = worker->GetStats();
  EXPECT_EQ(stats.requests_cancelled, 1u);
  EXPECT_EQ(stats.kv_pages_free, stats.kv_pages_total);
}

TEST_F(WorkerEngineTest, ClientThatIsGoneBeforeTheFirstTokenCancelsThePrefill) {
  auto worker = Worker();
  GenerateCallbacks callbacks;
  callbacks.cancelled = [] { return true; };
  Run(*worker, Request(900, 2, 100));
  const auto summary = worker->Generate(Request(900, 1, 100), callbacks);
  ASSERT_OK(summary);
  EXPECT_EQ(summary->finish_reason, "cancelled");
}

TEST_F(WorkerEngineTest, SmallPoolGivesUpPushesBeforeItRefuses) {
  WorkerEngine::Options options = Impatient();
  options.kv_pool_bytes = 10 * kLayers * kLayerBytes;
  auto worker = Worker(options);
  node_.SetFaults(Fault(&Faults::hang, true));
  for (int32_t seed = 1; seed < 5; ++seed) {
    EXPECT_OK(worker->Generate(Request(500, seed, 4), {}));
  }
  node_.SetFaults({});
  EXPECT_OK(worker->Generate(Request(500, 1, 4), {}));
}

TEST_F(WorkerEngineTest, WhatNeverFitsIsSpiltToTheNodeOrRefused) {
  WorkerEngine::Options options = Options();
  options.kv_pool_bytes = 10 * kLayers * kLayerBytes;
  auto worker = Worker(options);
  GenerateRequest large = Request(700, 9, 4);
  EXPECT_EQ(Run(*worker, large).tokens, Run(*WorkerWithoutCache(), large).tokens);
  EXPECT_GT(worker->GetStats().spill.spilled_tokens, 0u);
  // It uses no node.
  large.no_cache = true;
  EXPECT_THAT(worker->Generate(large, {}),
              testing::StatusIs(StatusCode::kResourceExhausted, ::testing::_));
  EXPECT_OK(worker->Generate(Request(500, 1, 4), {}));
}

TEST_F(WorkerEngineTest, ThePoolThatARefusalAsksForIsLargeEnough) {
  WorkerEngine::Options options = Options();
  options.kv_pool_bytes = 10 * kLayers * kLayerBytes;
  const GenerateRequest request = Request(690, 1, 4);  // Ends within the 11th page.
  const uint64_t expected = 11 * kLayers * kLayerBytes;
  const auto refused = WorkerWithoutCache(options)->Generate(request, {});
  static_assert(kLayers * kLayerBytes == 64 << 10);
  EXPECT_THAT(refused,
              testing::StatusIs(StatusCode::kResourceExhausted,
                                HasSubstr("kv_pool: got 640KiB, expected at least 704KiB for")));
  options.kv_pool_bytes = expected;
  EXPECT_OK(WorkerWithoutCache(options)->Generate(request, {}));
}

TEST_F(WorkerEngineTest, StreamedTextIsTheSummarysText) {
  auto worker = WorkerWithoutCache();
  std::string text;
  std::vector<model::TokenId> ids;
  GenerateCallbacks callbacks;
  callbacks.on_token = [&](model::TokenId id, std::string_view piece) {
    ids.push_back(id);
    text += piece;
    return true;
  };
  const auto summary = worker->Generate(Request(50, 3, 60), callbacks);
  ASSERT_OK(summary);
  EXPECT_EQ(ids, summary->tokens);
  // The end of an incomplete character comes with the summary only.
  EXPECT_EQ(summary->text.substr(0, text.size()), text);
}

TEST_F(WorkerEngineTest, SameSeedSameAnswer) {
  auto worker = WorkerWithoutCache();
  GenerateRequest request = Request(50, 3, 40);
  request.sampling.temperature = 1.0f;
  request.sampling.seed = 11;
  const GenerateSummary first = Run(*worker, request);
  EXPECT_EQ(Run(*worker, request).tokens, first.tokens);
  request.sampling.seed = 12;
  EXPECT_NE(Run(*worker, request).tokens, first.tokens);
}

TEST_F(WorkerEngineTest, AnswerEndsWithTheContext) {
  auto worker = WorkerWithoutCache();
  const GenerateSummary summary = Run(*worker, Request(1000, 1, 1024));
  EXPECT_EQ(summary.tokens.size(), 24u);
  EXPECT_EQ(summary.finish_reason, "length");
}

TEST_F(WorkerEngineTest, ShutdownRefusesAndFinishes) {
  auto worker = Worker();
  Run(*worker, Request(100));
  worker->Shutdown(std::chrono::seconds(20));
  EXPECT_EQ(node_.complete_blocks(), 1u);
  EXPECT_THAT(worker->Generate(Request(100), {}),
              testing::StatusIs(StatusCode::kUnavailable, HasSubstr("shutting down")));
}

TEST_F(WorkerEngineTest, OptionsAreChecked) {
  WorkerEngine::Options options = Options();
  options.queue_capacity = 0;
  EXPECT_THAT(WorkerEngine::Create(options, nullptr),
              testing::StatusIs(StatusCode::kInvalidArgument, HasSubstr("queue_capacity")));
  options = Options();
  options.max_context = 100000;
  EXPECT_THAT(WorkerEngine::Create(options, nullptr),
              testing::StatusIs(StatusCode::kInvalidArgument,
                                HasSubstr("context: got 100000, expected 0 to ")));
  options = Options();
  options.model_path = "no/such/file.gguf";
  EXPECT_FALSE(WorkerEngine::Create(options, nullptr).ok());
}

}  // namespace
}  // namespace cairn::worker
