#include "services/worker/methods/selections/selected_prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "services/worker/session/push_thread.h"
#include "services/worker/session/worker_namespace.h"
#include "tests/unit/worker/engine/engine_fixture.h"

namespace cairn::worker {
namespace {

using ::testing::Each;

// Every head another number of rows, head 0 of each layer none at all.
bool IsKept(int32_t layer, int32_t head, int64_t row) {
  return head > 0 && (row * 7 + layer * 3) % (head + 2) == 0;
}

// The observations of a selection, written down.
struct Observations {
  std::vector<std::vector<int64_t>> rows;  // By layer, in the order of the calls.
  bool keys_were_there = true;
  int64_t first_position = -1;
  std::vector<int32_t> token_ids;
};

class UnevenRun final : public selections::SelectionRun {
 public:
  UnevenRun(const selections::ModelShape& shape, bool finite, Observations* seen)
      : shape_(shape), finite_(finite), seen_(seen) {}

  void Observe(const selections::QueryRows& queries, const selections::SegmentKv& kv,
               kernels::ThreadPool& pool) override {
    seen_->rows.resize(static_cast<size_t>(shape_.layers));
    pool.ParallelFor(4, [](int64_t, int) {});  // May be used.
    for (int64_t r = 0; r < queries.rows; ++r) {
      seen_->rows[static_cast<size_t>(queries.layer)].push_back(queries.first_row + r);
      // A key of zeros was not written yet; a query of zeros is none.
      const uint16_t* k = kv.layers[static_cast<size_t>(queries.layer)].K(0, queries.first_row + r);
      const float* q = queries.q + r * queries.stride;
      const auto nonzero = [&](const auto* p) {
        return std::any_of(p, p + shape_.head_dim, [](auto x) { return x != 0; });
      };
      seen_->keys_were_there = seen_->keys_were_there && nonzero(k) && nonzero(q);
    }
  }

  bool Select(const selections::SegmentKv& kv, kernels::ThreadPool&,
              selections::KeptRows* kept) override {
    seen_->first_position = kv.first_position;
    seen_->token_ids.assign(kv.token_ids.begin(), kv.token_ids.end());
    if (!finite_) return false;
    *kept = selections::KeptRows(shape_.layers, shape_.kv_heads, kv.tokens);
    for (int32_t layer = 0; layer < shape_.layers; ++layer) {
      for (int32_t head = 0; head < shape_.kv_heads; ++head) {
        for (int64_t row = 0; row < kv.tokens; ++row) {
          if (IsKept(layer, head, row)) kept->Keep(layer, head, row);
        }
      }
    }
    return true;
  }

 private:
  const selections::ModelShape shape_;
  const bool finite_;
  Observations* const seen_;
};

class Uneven final : public selections::Selection {
 public:
  // `window`: last rows whose queries are observed.
  Uneven(int64_t window, Observations* seen, bool finite = true)
      : window_(window), seen_(seen), finite_(finite) {}
  std::string_view name() const override { return "uneven"; }
  int64_t FirstObserved(int64_t tokens) const override {
    return std::max<int64_t>(0, tokens - window_);
  }
  std::unique_ptr<selections::SelectionRun> Begin(const selections::ModelShape& shape,
                                                  const selections::ModelAccess& model,
                                                  int64_t) const override {
    projection.resize(static_cast<size_t>(shape.query_heads * shape.head_dim * shape.hidden));
    model.output_projection(1, projection.data());
    return std::make_unique<UnevenRun>(shape, finite_, seen_);
  }
  static inline std::vector<float> projection;

 private:
  const int64_t window_;
  Observations* const seen_;
  const bool finite_;
};

// The parts of WorkerEngine, with a selection that no recipe names.
struct Worker {
  Worker(InMemoryCacheClient* node, std::unique_ptr<selections::Selection> selection_in,
         const std::string& recipe = "random:keep=0.5+raw")
      : selection(std::move(selection_in)) {
    model = *model::Model::Load(kSmallModel);
    transformer = *Transformer::Create(*model, {.threads = 2});
    pool = *KvPool::Create(transformer->kv_layout(), 64 * transformer->kv_layout().page_bytes());
    if (node != nullptr) {
      client = std::make_unique<SharedClient>(*node);
      NamespaceInputs inputs;
      inputs.model = "small";
      inputs.weights = model->weights_digest();
      inputs.kv = pool->layout();
      inputs.numerics = transformer->numerics_id();
      inputs.recipe = recipe;
      const CheckedNamespace ns = *WorkerNamespace(inputs);
      codec = *KvCodec::Create(ns, pool->layout(), clock);
      push.emplace(*client, ns.spec.layout, clock, PushQueue::Options{});
      push_thread.emplace(*push);
      // How much is fetched must not depend on how busy this machine is.
      PrefixSession::Options patient;
      patient.match_deadline = std::chrono::seconds(60);
      patient.stall_deadline = std::chrono::seconds(60);
      session.emplace(
          PrefixSession::Dependencies{
              .client = *client, .codec = *codec, .clock = clock, .executor = background},
          ns, pool->layout(), patient);
    }
    prompt.emplace(*transformer, *model, *pool, clock, *selection, session ? &*session : nullptr,
                   push ? &*push : nullptr);
    logits.resize(static_cast<size_t>(transformer->vocab()));
  }

  SelectedPrompts::Report Compute(const std::vector<model::TokenId>& tokens, int64_t prefix_end) {
    sequence = std::make_shared<KvSequence>(pool->NewSequence());
    SelectedPrompts::Request request;
    request.prompt.tokens = tokens;
    request.prompt.sequence = sequence;
    request.prompt.logits = logits.data();
    request.prompt.prefix_end = prefix_end;
    request.capacity = std::ssize(tokens) + 140;
    request.make_room = [] {};
    SelectedPrompts::Report report = prompt->Compute(request);
    EXPECT_OK(report.prompt.status);
    EXPECT_EQ(sequence->length(), std::ssize(tokens));
    EXPECT_GE(sequence->capacity(), request.capacity);
    return report;
  }
  // Greedy tokens after the prompt.
  std::vector<model::TokenId> Decode(int count) {
    std::vector<model::TokenId> tokens;
    for (int i = 0; i < count; ++i) {
      tokens.push_back(static_cast<model::TokenId>(std::max_element(logits.begin(), logits.end()) -
                                                   logits.begin()));
      SequenceChunk chunk;
      chunk.sequence = sequence.get();
      chunk.tokens = {&tokens.back(), 1};
      chunk.phase = Phase::kDecode;
      chunk.logits = logits.data();
      EXPECT_OK(transformer->Forward({&chunk, 1}));
    }
    return tokens;
  }

  const Clock& clock = SteadyClock::Get();
  const std::unique_ptr<const selections::Selection> selection;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<Transformer> transformer;
  std::unique_ptr<KvPool> pool;
  std::unique_ptr<SharedClient> client;
  std::unique_ptr<KvCodec> codec;
  ThreadPool background{{.name = "fetch", .threads = 2}};
  std::optional<PrefixSession> session;
  std::optional<PushQueue> push;
  std::optional<PushThread> push_thread;
  std::optional<SelectedPrompts> prompt;
  std::shared_ptr<KvSequence> sequence;
  std::vector<float> logits;
};

std::vector<model::TokenId> Tokens(size_t count) {
  std::vector<model::TokenId> tokens;
  for (size_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<model::TokenId>(20 + i * i % 199));
  return tokens;
}

TEST(SelectedPromptTest, HeadsMayKeepDifferentNumbersOfRowsAndNone) {
  InMemoryCacheClient node;
  Observations seen;
  const std::vector<model::TokenId> tokens = Tokens(400);
  Worker cold(&node, std::make_unique<Uneven>(0, &seen));
  const SelectedPrompts::Report first = cold.Compute(tokens, 320);
  EXPECT_TRUE(first.shared);
  EXPECT_EQ(first.prompt.selected_tokens, 320u);
  const RaggedPrefix& prefix = *cold.sequence->prefix();
  for (int layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(prefix.rows(layer, 0), 0);
    EXPECT_GT(prefix.rows(layer, 1), 100);
  }
  EXPECT_TRUE(cold.push->WaitEmpty(SteadyClock::Get().Now() + std::chrono::seconds(60)));
  EXPECT_EQ(node.complete_blocks(), 5u);

  Worker warm(&node, std::make_unique<Uneven>(0, &seen));
  EXPECT_EQ(warm.Compute(tokens, 320).prompt.fetched_blocks, 5u);
  EXPECT_EQ(warm.logits, cold.logits);
  for (int layer = 0; layer < kLayers; ++layer) {
    const int64_t rows = prefix.rows(layer, 1);
    ASSERT_EQ(warm.sequence->prefix()->rows(layer, 1), rows);
    std::vector<uint16_t> k(static_cast<size_t>(rows * 64)), v(k.size()), k2(k), v2(v);
    prefix.CopyRows(layer, 1, 0, rows, k.data(), v.data());
    warm.sequence->prefix()->CopyRows(layer, 1, 0, rows, k2.data(), v2.data());
    EXPECT_EQ(k, k2);
    EXPECT_EQ(v, v2);
  }
  // Over two edges of blocks.
  EXPECT_EQ(warm.Decode(130), cold.Decode(130));
  EXPECT_EQ(warm.logits, cold.logits);
}

TEST(SelectedPromptTest, ASelectionSeesEveryQueryOfItsWindowOnce) {
  Observations seen;
  Worker worker(nullptr, std::make_unique<Uneven>(100, &seen));
  const std::vector<model::TokenId> tokens = Tokens(700);
  const SelectedPrompts::Report report = worker.Compute(tokens, 640);
  EXPECT_EQ(report.prompt.selected_tokens, 640u);
  EXPECT_EQ(seen.first_position, 0);
  EXPECT_EQ(seen.token_ids, std::vector<int32_t>(tokens.begin(), tokens.begin() + 640));
  ASSERT_EQ(seen.rows.size(), size_t{kLayers});
  std::vector<int64_t> want;
  for (int64_t row = 540; row < 640; ++row) want.push_back(row);
  EXPECT_THAT(seen.rows, Each(want));
  EXPECT_TRUE(seen.keys_were_there);
  // The projection is the transpose of what the file has: neither zeros nor numbers that are not.
  EXPECT_TRUE(std::any_of(Uneven::projection.begin(), Uneven::projection.end(),
                          [](float x) { return x != 0; }));
  EXPECT_TRUE(std::all_of(Uneven::projection.begin(), Uneven::projection.end(),
                          [](float x) { return std::isfinite(x); }));
}

TEST(SelectedPromptTest, ASelectionThatAsksTheQuestionIsPrivate) {
  InMemoryCacheClient node;
  Observations seen;
  Worker worker(&node, std::make_unique<Uneven>(32, &seen));
  const std::vector<model::TokenId> tokens = Tokens(333);
  const SelectedPrompts::Report report = worker.Compute(tokens, 0);
  EXPECT_FALSE(report.shared);
  EXPECT_EQ(report.prompt.selected_tokens, 333u) << "the whole prompt, to its last token";
  EXPECT_EQ(worker.sequence->base(), 333);
  EXPECT_EQ(seen.rows[0].back(), 332);
  // The prompt's own logits come of all of its tokens.
  const std::vector<float> logits = worker.logits;
  worker.Decode(100);
  EXPECT_TRUE(worker.push->WaitEmpty(SteadyClock::Get().Now() + std::chrono::seconds(60)));
  EXPECT_EQ(node.complete_blocks(), 0u) << "nothing is pushed";
  Worker full(nullptr, std::make_unique<Uneven>(32, &seen, /*finite=*/false));
  full.Compute(tokens, 0);
  EXPECT_EQ(full.logits, logits);
  // With an end of the shared part it is not: the window ends there.
  EXPECT_TRUE(worker.Compute(tokens, 256).shared);
  EXPECT_EQ(seen.rows[0].back(), 255);
}

TEST(SelectedPromptTest, ScoresThatAreNotFiniteKeepEverything) {
  Observations seen;
  Worker worker(nullptr, std::make_unique<Uneven>(0, &seen, /*finite=*/false));
  const SelectedPrompts::Report report = worker.Compute(Tokens(200), 192);
  EXPECT_EQ(report.prompt.kept_rows, 192u * kLayers * kKvHeads);
}

TEST(SelectedPromptTest, ASecondSegmentIsSelectedByItself) {
  InMemoryCacheClient node;
  Observations seen;
  Worker worker(&node, std::make_unique<Uneven>(64, &seen));
  worker.Compute(Tokens(200), 128);
  EXPECT_TRUE(worker.push->WaitEmpty(SteadyClock::Get().Now() + std::chrono::seconds(60)));
  seen = {};
  const SelectedPrompts::Report report = worker.Compute(Tokens(500), 448);
  EXPECT_EQ(report.prompt.fetched_blocks, 2u);
  EXPECT_EQ(seen.first_position, 128);
  EXPECT_EQ(seen.token_ids.size(), 320u);
  EXPECT_EQ(seen.rows[0].front(), 320 - 64) << "rows are numbered from the segment's first";
  // Rows of both segments, each by its own numbers.
  int64_t want = 0;
  for (const int64_t tokens : {128, 320}) {
    for (int64_t row = 0; row < tokens; ++row) want += IsKept(1, 1, row) ? 1 : 0;
  }
  EXPECT_EQ(worker.sequence->prefix()->rows(1, 1), want);
}

TEST(SelectedPromptTest, AShortPoolIsGivenASecondChance) {
  Observations seen;
  Worker worker(nullptr, std::make_unique<Uneven>(0, &seen));
  KvSequence hog = worker.pool->NewSequence();
  ASSERT_OK(hog.Reserve(60 * 64));
  const std::vector<model::TokenId> tokens = Tokens(400);
  SelectedPrompts::Request request;
  request.prompt.tokens = tokens;
  request.prompt.sequence = std::make_shared<KvSequence>(worker.pool->NewSequence());
  request.prompt.logits = worker.logits.data();
  request.prompt.prefix_end = 320;
  request.capacity = 410;
  request.make_room = [&] { hog.Clear(); };
  EXPECT_OK(worker.prompt->Compute(request).prompt.status);
  hog = worker.pool->NewSequence();
  ASSERT_OK(hog.Reserve(60 * 64));
  request.prompt.sequence = std::make_shared<KvSequence>(worker.pool->NewSequence());
  request.make_room = [] {};
  EXPECT_EQ(worker.prompt->Compute(request).prompt.status.code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace cairn::worker
