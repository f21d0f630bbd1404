// The transformer on small generated models: every weight type against a forward pass written again
// here, and bad input.

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
  Sharers(const model::Model& model, const kernels::Backend& backend, Arithmetic arithmetic)
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

// Copies of a sequence's first pages, given window by window through one buffer.
class CopiedKv final : public EarlierKv {
 public:
  CopiedKv(const KvLayout& kv, int64_t window_tokens) : kv_(kv), window_(window_tokens) {}

  // Takes the tokens before `end` out of the sequence's pages.
  void Take(KvSequence& sequence, int64_t end) {
    for (int64_t page = 0; sequence.base() + page * kv_.block_tokens < end; ++page) {
      const auto first = std::as_const(sequence).LayerSlice(page, 0);
      pages_.emplace_back(first.data(), first.data() + kv_.page_bytes());
    }
    sequence.DropFront(end);
  }

  int64_t tokens() const override { return std::ssize(pages_) * kv_.block_tokens; }
  Status Begin(int layer) override {
    layer_ = layer;
    next_ = 0;
    return OkStatus();
  }
  Result<Window> Next() override {
    slices_.clear();
    const int64_t count = std::min(window_, tokens() - next_ * kv_.block_tokens) / kv_.block_tokens;
    // Nothing of the last window may be read any more.
    buffer_.assign(static_cast<size_t>(count) * kv_.layer_bytes(), std::byte{0x7e});
    for (int64_t i = 0; i < count; ++i, ++next_) {
      std::byte* const at = buffer_.data() + static_cast<size_t>(i) * kv_.layer_bytes();
      std::memcpy(at,
                  pages_[static_cast<size_t>(next_)].data() +
                      static_cast<size_t>(layer_) * kv_.layer_bytes(),
                  kv_.layer_bytes());
      slices_.push_back(at);
    }
    return Window{count * kv_.block_tokens, slices_};
  }
  Status End() override {
    if (--ends_left == 0) return Errorf(StatusCode::kUnavailable, "the memory was taken back");
    return OkStatus();
  }

  int ends_left = -1;  // 0 after this many: an error.

 private:
  const KvLayout kv_;
  const int64_t window_;
  std::vector<std::vector<std::byte>> pages_;
  std::vector<std::byte> buffer_;
  std::vector<const std::byte*> slices_;
  int layer_ = 0;
  int64_t next_ = 0;
};

// The logits of each chunk, computed with all pages, and with most of them elsewhere.
std::vector<std::vector<float>> LongPrompt(Runner& r, std::span<const int32_t> tokens,
                                           int64_t chunk, CopiedKv* earlier,
                                           int64_t most_in_pages) {
  std::vector<std::vector<float>> logits;
  const auto run = [&](std::span<const int32_t> some, Phase phase) {
    SequenceChunk c;
    c.sequence = &r.sequence;
    c.tokens = some;
    c.phase = phase;
    c.logits = r.logits.data();
    c.earlier = earlier;
    ASSERT_TRUE(r.sequence.Reserve(r.sequence.length() + std::ssize(some)).ok());
    const Status status = r.transformer->Forward(std::span(&c, 1));
    ASSERT_TRUE(status.ok()) << status;
    logits.push_back(r.logits);
  };
  for (size_t at = 0; at < tokens.size(); at += static_cast<size_t>(chunk)) {
    if (earlier != nullptr && r.sequence.length() - r.sequence.base() + chunk > most_in_pages) {
      earlier->Take(r.sequence,
                    r.sequence.length() / EarlierKv::kUnitTokens * EarlierKv::kUnitTokens);
    }
    run(tokens.subspan(at, std::min(static_cast<size_t>(chunk), tokens.size() - at)),
        Phase::kPrefill);
  }
  for (const int32_t token : {5, 9, 40}) run({&token, 1}, Phase::kDecode);
  return logits;
}

// A prompt of 700 tokens and an answer, with most KV in pages and elsewhere.
void ExpectTheSameElsewhere(const model::Model& model, const Transformer::Options& options,
                            int64_t window) {
  const std::vector<int32_t> tokens = Tokens(700);
  const int64_t chunk = std::max<int64_t>(128, options.block_tokens);
  Runner whole(model, options);
  const auto want = LongPrompt(whole, tokens, chunk, nullptr, 0);
  Runner some(model, options);
  CopiedKv earlier(some.transformer->kv_layout(), window);
  const auto got = LongPrompt(some, tokens, chunk, &earlier, 384);
  EXPECT_EQ(earlier.tokens(), 512);
  EXPECT_EQ(got, want) << whole.transformer->numerics_id() << ", window " << window;
}

TEST(TransformerTest, KeysAndValuesElsewhereGiveTheBitsOfThoseInPages) {
  const GeneratedModel model(kOthers);
  for (const kernels::Backend* backend : kernels::Backends()) {
    // The reference adds in another order: tests/conformance/kernels.
    if (std::string_view(backend->name) == "reference") continue;
    for (const Arithmetic arithmetic : {Arithmetic::kFloat32, Arithmetic::kFast}) {
      ExpectTheSameElsewhere(
          *model, {.arithmetic = arithmetic, .threads = 2, .max_context = 1024, .backend = backend},
          256);
    }
  }
  ExpectTheSameElsewhere(*model, {.threads = 2, .block_tokens = 16, .max_context = 1024}, 512);
  ExpectTheSameElsewhere(*model, {.threads = 2, .block_tokens = 256, .max_context = 1024}, 768);
}

TEST(TransformerTest, EarlierKeysThatWereWrongEndThePassAndItCanBeRepeated) {
  const GeneratedModel model(kOthers);
  const std::vector<int32_t> tokens = Tokens(600);
  Runner r(*model, {.threads = 2, .max_context = 2048});
  CopiedKv earlier(r.transformer->kv_layout(), 256);
  LongPrompt(r, std::span(tokens).first(512), 128, nullptr, 0);
  r.sequence.Truncate(512);
  earlier.Take(r.sequence, 512);
  ASSERT_TRUE(r.sequence.Reserve(600).ok());
  SequenceChunk c;
  c.sequence = &r.sequence;
  c.tokens = std::span(tokens).subspan(512);
  c.logits = r.logits.data();
  c.earlier = &earlier;
  earlier.ends_left = 2;  // In the second layer.
  EXPECT_EQ(r.transformer->Forward(std::span(&c, 1)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(r.sequence.length(), 512);
  EXPECT_TRUE(r.transformer->Forward(std::span(&c, 1)).ok());
  EXPECT_EQ(r.sequence.length(), 600);
  // Without what its base says, a sequence cannot go on.
  c.earlier = nullptr;
  c.tokens = std::span(tokens).first(1);
  c.phase = Phase::kDecode;
  const Status without = r.transformer->Forward(std::span(&c, 1));
  EXPECT_EQ(without.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(without.message().find("'earlier'"), std::string::npos);
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
