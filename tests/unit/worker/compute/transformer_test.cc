// The transformer on small generated models: every weight type against a forward pass written
// anew here, and bad input.

#include "services/worker/compute/transformer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/unit/worker/compute/generated_model.h"

namespace cairn::worker {
namespace {

using kernels::WeightType;
using testing::Distance;
using testing::GeneratedModel;
using testing::kKQuants;
using testing::kLayers;
using testing::kOthers;
using testing::kVocab;
using testing::PlainLlama;
using testing::Runner;
using testing::Tokens;

TEST(TransformerTest, AgreesWithPlainLlamaForEveryWeightType) {
  for (const auto& types : {kKQuants, kOthers}) {
    const GeneratedModel model(types);
    PlainLlama plain(*model);
    const std::vector<int32_t> tokens = Tokens(72);
    std::vector<float> want, want_next;
    for (const int32_t token : tokens) want = plain.Step(token);
    want_next = plain.Step(5);
    for (const kernels::Backend* backend : kernels::Backends()) {
      for (const Arithmetic arithmetic : {Arithmetic::kFloat32, Arithmetic::kFast}) {
        Runner r(*model, {.arithmetic = arithmetic, .threads = 2, .backend = backend});
        const double bound = arithmetic == Arithmetic::kFloat32 ? 2e-3 : 3e-2;
        ASSERT_TRUE(r.Run(tokens, Phase::kPrefill).ok());
        EXPECT_LE(Distance(want, r.logits), bound) << r.transformer->numerics_id();
        ASSERT_TRUE(r.Run(std::vector<int32_t>{5}, Phase::kDecode).ok());
        EXPECT_LE(Distance(want_next, r.logits), bound) << r.transformer->numerics_id();
      }
    }
  }
}

TEST(TransformerTest, TheBlockLengthDoesNotChangeABit) {
  const GeneratedModel model(kOthers);
  std::vector<float> expected;
  for (const int32_t block : {64, 16, 256}) {
    Runner r(*model, {.threads = 2, .block_tokens = block});
    ASSERT_TRUE(r.Run(Tokens(200), Phase::kPrefill).ok());
    if (expected.empty()) expected = r.logits;
    EXPECT_EQ(std::memcmp(r.logits.data(), expected.data(), expected.size() * 4), 0) << block;
  }
}

TEST(TransformerTest, NumericsIdNamesModeAndKernels) {
  const GeneratedModel model(kOthers);
  const kernels::Backend* const portable = kernels::FindBackend("portable");
  EXPECT_EQ(Runner(*model, {.threads = 1, .backend = portable}).transformer->numerics_id(),
            "fast-portable-1");
  EXPECT_EQ(Runner(*model, {.arithmetic = Arithmetic::kFloat32, .threads = 1, .backend = portable})
                .transformer->numerics_id(),
            "float32-portable-1");
}

TEST(TransformerTest, ABackendThatDoesNotRunInlineIsRefused) {
  const GeneratedModel model(kOthers);
  kernels::Backend backend = kernels::BestCpuBackend();
  backend.name = "far";
  backend.runs_inline = false;
  const auto made = Transformer::Create(*model, {.threads = 1, .backend = &backend});
  ASSERT_EQ(made.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(Message(made.status()).find("'backend': got far"), std::string::npos);
}

TEST(TransformerTest, BadInputNamesTheFieldAndChangesNothing) {
  const GeneratedModel model(kOthers);
  Runner r(*model, {.threads = 1, .max_context = 100});
  const auto expect = [&](const Status& status, StatusCode code, const std::string& word) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(Message(status).find(word), std::string::npos) << status;
  };
  using enum StatusCode;
  expect(r.Run(std::vector<int32_t>{-1}, Phase::kPrefill), kInvalidArgument, "token -1");
  expect(r.Run(std::vector<int32_t>{kVocab}, Phase::kPrefill), kInvalidArgument, "token 80");
  expect(r.Run({}, Phase::kPrefill), kInvalidArgument, "tokens");
  expect(r.Run(Tokens(2), Phase::kDecode), kInvalidArgument, "tokens");
  expect(r.Run(Tokens(101), Phase::kPrefill), kOutOfRange, "context of 100");
  EXPECT_EQ(r.sequence.length(), 0);
  ASSERT_TRUE(r.Run(Tokens(10), Phase::kPrefill).ok());
  expect(r.Run(Tokens(10), Phase::kPrefill), kInvalidArgument, "block start");
  EXPECT_EQ(r.sequence.length(), 10);

  SequenceChunk none;
  expect(r.transformer->Forward(std::span(&none, 1)), kInvalidArgument, "sequence");
  const int32_t token = 1;
  SequenceChunk twice[2];
  for (SequenceChunk& c : twice) {
    c.sequence = &r.sequence;
    c.tokens = std::span(&token, 1);
    c.phase = Phase::kDecode;
  }
  expect(r.transformer->Forward(twice), kInvalidArgument, "same sequence");
  KvSequence empty = r.pool->NewSequence();
  twice[0].sequence = &empty;
  expect(r.transformer->Forward(std::span(twice, 1)), kInvalidArgument, "room for 0");
  EXPECT_TRUE(r.transformer->Forward({}).ok());
}

TEST(TransformerTest, AnErrorOfACallbackEndsThePass) {
  const GeneratedModel model(kOthers);
  Runner r(*model, {.threads = 2});
  ASSERT_TRUE(r.sequence.Reserve(64).ok());
  const std::vector<int32_t> tokens = Tokens(20);
  SequenceChunk c;
  c.sequence = &r.sequence;
  c.tokens = tokens;
  std::vector<int> stored;
  c.before_layer = [](int layer) {
    return layer == 1 ? Errorf(StatusCode::kUnavailable, "layer {} did not come", layer)
                      : OkStatus();
  };
  c.after_layer = [&](int layer) { stored.push_back(layer); };
  EXPECT_EQ(r.transformer->Forward(std::span(&c, 1)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(r.sequence.length(), 0);
  EXPECT_EQ(stored, (std::vector<int>{0, 1}));
  // The same chunk can be tried again.
  c.before_layer = nullptr;
  EXPECT_TRUE(r.transformer->Forward(std::span(&c, 1)).ok());
  EXPECT_EQ(r.sequence.length(), 20);
}

// Slab by slab within a layer, or chunk by chunk through all layers: KV and logits are the same.
TEST(TransformerTest, AWideChunkGivesTheBitsOfSmallOnes) {
  const GeneratedModel model(kOthers);
  Runner small(*model, {.threads = 2, .max_context = 8192});
  Runner wide(*model, {.threads = 2, .max_context = 8192});
  const std::vector<int32_t> tokens = Tokens(64 + 2 * small.transformer->max_rows() + 30);
  ASSERT_TRUE(small.Run(std::span(tokens).first(64), Phase::kPrefill).ok());
  ASSERT_TRUE(wide.Run(std::span(tokens).first(64), Phase::kPrefill).ok());
  const std::span<const int32_t> rest = std::span(tokens).subspan(64);
  const auto step = static_cast<size_t>(small.transformer->max_rows());
  for (size_t at = 0; at < rest.size(); at += step) {
    const auto chunk = rest.subspan(at, std::min(step, rest.size() - at));
    ASSERT_TRUE(small.Run(chunk, Phase::kPrefill).ok());
  }
  ASSERT_TRUE(wide.sequence.Reserve(std::ssize(tokens)).ok());
  SequenceChunk c;
  c.sequence = &wide.sequence;
  c.tokens = rest;
  c.logits = wide.logits.data();
  std::vector<int> calls;
  c.before_layer = [&](int layer) {
    calls.push_back(layer);
    return OkStatus();
  };
  c.after_layer = [&](int layer) { calls.push_back(100 + layer); };
  ASSERT_TRUE(wide.transformer->Forward(std::span(&c, 1)).ok());
  // Each once; after_layer when the last slab is stored.
  EXPECT_EQ(calls, (std::vector<int>{0, 100, 1, 101}));
  EXPECT_EQ(wide.logits, small.logits);
  for (int64_t page = 0; page < small.sequence.page_count(); ++page) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto want = std::as_const(small.sequence).LayerSlice(page, layer);
      const auto got = std::as_const(wide.sequence).LayerSlice(page, layer);
      // The last page is not full; what lies behind its tokens is not written.
      EXPECT_EQ(std::memcmp(want.data(), got.data(), want.size()), 0) << page << ", " << layer;
    }
  }
  const std::vector<int32_t> too_many = Tokens(wide.transformer->max_wide_rows() + 1);
  EXPECT_FALSE(wide.Run(too_many, Phase::kPrefill).ok());
}

// Sequences of one transformer that begin with the same pages.
class Sharers {
 public:
  Sharers(const Model& model, const kernels::Backend& backend, Arithmetic arithmetic)
      : r_(model, {.arithmetic = arithmetic,
                   .threads = 2,
                   .block_tokens = 16,
                   .max_context = 1024,
                   .backend = &backend}) {}

  // A sequence of `length` tokens, of which the first `common` are in the pages of the first one.
  void Add(int64_t common, int64_t length) {
    std::vector<int32_t> tokens = Tokens(length);
    for (int64_t t = common; t < length; ++t) {
      auto& token = tokens[static_cast<size_t>(t)];
      token = (token + static_cast<int32_t>(sequences_.size())) % kVocab;
    }
    sequences_.push_back(std::make_unique<KvSequence>(r_.pool->NewSequence()));
    KvSequence& sequence = *sequences_.back();
    ASSERT_TRUE(sequence.Reserve(length + 8).ok());
    for (int64_t page = 0; page < common / 16; ++page) {
      ASSERT_TRUE(sequence.Adopt(page, Name(page)));
    }
    sequence.SetLength(common / 16 * 16);
    const auto step = static_cast<size_t>(r_.transformer->max_rows());
    while (sequence.length() < length) {
      const auto rest = std::span(tokens).subspan(static_cast<size_t>(sequence.length()));
      Forward({{static_cast<size_t>(sequences_.size() - 1), rest.first(std::min(step, rest.size())),
                Phase::kPrefill}});
    }
    if (sequences_.size() > 1) return;
    for (int64_t page = 0; page < length / 16; ++page) sequence.Publish(page, Name(page));
  }

  struct Work {
    size_t sequence;
    std::span<const int32_t> tokens;
    Phase phase;
  };
  // The logits of each.
  std::vector<std::vector<float>> Forward(const std::vector<Work>& work) {
    std::vector<std::vector<float>> logits(work.size());
    std::vector<SequenceChunk> chunks(work.size());
    for (size_t i = 0; i < work.size(); ++i) {
      logits[i].resize(kVocab);
      chunks[i].sequence = sequences_[work[i].sequence].get();
      chunks[i].tokens = work[i].tokens;
      chunks[i].phase = work[i].phase;
      chunks[i].logits = logits[i].data();
    }
    const Status status = r_.transformer->Forward(chunks);
    EXPECT_TRUE(status.ok()) << status;
    return logits;
  }
  size_t size() const { return sequences_.size(); }
  void Back(size_t sequence, int64_t length) { sequences_[sequence]->SetLength(length); }
  int64_t Length(size_t sequence) const { return sequences_[sequence]->length(); }

 private:
  static Digest Name(int64_t page) {
    Digest name;
    name.bytes[0] = static_cast<uint8_t>(page);
    return name;
  }
  Runner r_;
  std::vector<std::unique_ptr<KvSequence>> sequences_;
};

TEST(TransformerTest, SequencesThatShareAPrefixDecodeAsAlone) {
  const GeneratedModel model(kOthers);
  for (const kernels::Backend* backend : kernels::Backends()) {
    for (const Arithmetic arithmetic : {Arithmetic::kFloat32, Arithmetic::kFast}) {
      Sharers all(*model, *backend, arithmetic);
      all.Add(0, 600);
      // Common splits of 256 tokens: two, two, one, none, one of which the last is not full.
      for (const auto& [common, length] :
           {std::pair{600, 610}, {560, 570}, {400, 520}, {0, 300}, {272, 273}, {256, 256}}) {
        ASSERT_NO_FATAL_FAILURE(all.Add(common, length));
      }
      const int32_t token = 7;
      const std::vector<int32_t> prompt = Tokens(16);
      std::vector<Sharers::Work> together;
      std::vector<std::vector<float>> alone;
      for (size_t i = 0; i < all.size(); ++i) {
        const int64_t length = all.Length(i);
        // The last one computes a part of its prompt meanwhile.
        const Sharers::Work work = i + 1 < all.size()
                                       ? Sharers::Work{i, {&token, 1}, Phase::kDecode}
                                       : Sharers::Work{i, prompt, Phase::kPrefill};
        together.push_back(work);
        alone.push_back(all.Forward({work}).front());
        all.Back(i, length);
      }
      std::reverse(together.begin(), together.end());
      std::reverse(alone.begin(), alone.end());
      EXPECT_EQ(all.Forward(together), alone) << backend->name;
    }
  }
}

TEST(TransformerTest, ImpossibleOptionsNameTheOption) {
  const GeneratedModel model(kOthers);
  const auto message = [&](const Transformer::Options& options) {
    return Message(Transformer::Create(*model, options).status());
  };
  EXPECT_NE(message({.threads = -1}).find("threads"), std::string::npos);
  EXPECT_NE(message({.block_tokens = 8}).find("block_tokens"), std::string::npos);
  EXPECT_NE(message({.max_context = -5}).find("max_context"), std::string::npos);
}

}  // namespace
}  // namespace cairn::worker
