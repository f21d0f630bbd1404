// The transformer against an independent implementation (PyTorch, float32), and the promises of
// transformer.h about exactness.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "cairn/kernels/weight_types.h"
#include "services/worker/compute/transformer.h"
#include "tests/unit/worker/compute/smollm2.h"

namespace cairn::worker {
namespace {

using testing::Divergence;
using testing::kVocab;
using testing::SharedModel;
using testing::SharedReference;

std::unique_ptr<Transformer> Make(Arithmetic arithmetic, int threads = 2,
                                  const kernels::Backend* backend = nullptr) {
  auto made = Transformer::Create(
      SharedModel(), {.arithmetic = arithmetic, .threads = threads, .backend = backend});
  EXPECT_TRUE(made.ok()) << made.status();
  return std::move(made).value();
}

std::unique_ptr<KvPool> MakePool(const Transformer& t, int64_t tokens = 1024) {
  const KvLayout& layout = t.kv_layout();
  const int64_t pages = (tokens + layout.block_tokens - 1) / layout.block_tokens;
  auto made = KvPool::Create(layout, layout.page_bytes() * static_cast<size_t>(pages));
  EXPECT_TRUE(made.ok()) << made.status();
  return std::move(made).value();
}

// Prefills ids[sequence->length()..] in chunks of `chunk` tokens; returns the last row's logits.
std::vector<float> Prefill(Transformer* t, KvSequence* sequence, std::span<const int32_t> ids,
                           int64_t chunk = 64) {
  std::vector<float> logits(kVocab);
  EXPECT_TRUE(sequence->Reserve(static_cast<int64_t>(ids.size())).ok());
  while (sequence->length() < static_cast<int64_t>(ids.size())) {
    const auto begin = static_cast<size_t>(sequence->length());
    const size_t count = std::min(static_cast<size_t>(chunk), ids.size() - begin);
    SequenceChunk c;
    c.sequence = sequence;
    c.tokens = ids.subspan(begin, count);
    c.logits = begin + count == ids.size() ? logits.data() : nullptr;
    const Status status = t->Forward(std::span(&c, 1));
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) break;
  }
  return logits;
}

int32_t Greedy(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Appends `count` greedy tokens.
std::vector<int32_t> Decode(Transformer* t, KvSequence* sequence, std::vector<float> logits,
                            int count) {
  std::vector<int32_t> tokens;
  while (true) {
    const int32_t token = Greedy(logits);
    tokens.push_back(token);
    if (static_cast<int>(tokens.size()) == count) return tokens;
    EXPECT_TRUE(sequence->Reserve(sequence->length() + 1).ok());
    SequenceChunk c;
    c.sequence = sequence;
    c.tokens = std::span(&token, 1);
    c.phase = Phase::kDecode;
    c.logits = logits.data();
    const Status status = t->Forward(std::span(&c, 1));
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) return tokens;
  }
}

// All bytes of the sequence's full blocks.
std::vector<std::byte> FullBlocks(const KvSequence& sequence) {
  std::vector<std::byte> bytes;
  for (int64_t p = 0; p < sequence.length() / sequence.layout().block_tokens; ++p) {
    for (int l = 0; l < sequence.layout().layers; ++l) {
      const auto slice = sequence.LayerSlice(p, l);
      bytes.insert(bytes.end(), slice.begin(), slice.end());
    }
  }
  return bytes;
}

struct Mode {
  const char* name;
  Arithmetic arithmetic;
  double most_divergence;
};

class ParityTest : public ::testing::TestWithParam<Mode> {};

TEST_P(ParityTest, LogitsAndGreedyTokensMatchTheReference) {
  CAIRN_REQUIRE_MODEL();
  const auto t = Make(GetParam().arithmetic);
  const auto pool = MakePool(*t);
  for (const auto& [name, prompt] : SharedReference().prompts) {
    KvSequence sequence = pool->NewSequence();
    const std::vector<float> logits = Prefill(t.get(), &sequence, prompt.ids);
    const double kl = Divergence(prompt.logits, logits);
    RecordProperty("divergence_" + name, std::to_string(kl));
    std::printf("%s, %s: divergence %.3g nat\n", t->numerics_id().c_str(), name.c_str(), kl);
    EXPECT_LE(kl, GetParam().most_divergence) << name;
    EXPECT_EQ(Decode(t.get(), &sequence, logits, static_cast<int>(prompt.greedy.size())),
              prompt.greedy)
        << name;
  }
}

TEST_P(ParityTest, KeysAndValuesAreThoseOfTheReferenceInBlockOrder) {
  CAIRN_REQUIRE_MODEL();
  const auto t = Make(GetParam().arithmetic);
  const auto pool = MakePool(*t);
  const auto& reference = SharedReference();
  KvSequence sequence = pool->NewSequence();
  Prefill(t.get(), &sequence, reference.kv_ids);
  const int64_t block = t->kv_layout().block_tokens;
  const uint16_t* expected = reference.kv.data();
  for (const int layer : reference.kv_layers) {
    for (int plane = 0; plane < 2; ++plane) {
      double error = 0.0, norm = 0.0;
      for (int head = 0; head < 3; ++head) {
        for (int64_t token = 0; token < reference.kv_tokens; ++token) {
          const auto slice = sequence.LayerSlice(token / block, layer);
          const auto* row = reinterpret_cast<const uint16_t*>(slice.data()) +
                            ((plane * 3 + head) * block + token % block) * 64;
          for (int d = 0; d < 64; ++d, ++expected) {
            const double want = kernels::HalfToFloat(*expected);
            const double got = kernels::HalfToFloat(row[d]);
            error += (got - want) * (got - want);
            norm += want * want;
          }
        }
      }
      const double bound = GetParam().arithmetic == Arithmetic::kFloat32 ? 1e-3 : 2e-2;
      EXPECT_LE(std::sqrt(error / norm), bound) << "layer " << layer << " plane " << plane;
    }
  }
}

TEST_P(ParityTest, ThreadsAndChunkLengthDoNotChangeABit) {
  CAIRN_REQUIRE_MODEL();
  const auto& ids = SharedReference().prompts.at("prose").ids;
  const auto one = Make(GetParam().arithmetic, 1);
  const auto pool = MakePool(*one);
  KvSequence first = pool->NewSequence();
  const std::vector<float> expected = Prefill(one.get(), &first, ids, 64);
  const std::vector<int32_t> tokens = Decode(one.get(), &first, expected, 8);
  const auto two = Make(GetParam().arithmetic, 2);
  for (const int64_t chunk : {64, 128, 256}) {
    KvSequence second = pool->NewSequence();
    const std::vector<float> logits = Prefill(two.get(), &second, ids, chunk);
    EXPECT_EQ(std::memcmp(logits.data(), expected.data(), kVocab * sizeof(float)), 0) << chunk;
    EXPECT_EQ(Decode(two.get(), &second, logits, 8), tokens);
    EXPECT_TRUE(FullBlocks(second) == FullBlocks(first)) << chunk;
  }
}

TEST_P(ParityTest, TheLogitsOfEveryTokenAreThoseOfAPromptThatEndsThere) {
  CAIRN_REQUIRE_MODEL();
  const auto& ids = SharedReference().prompts.at("prose").ids;
  const auto t = Make(GetParam().arithmetic);
  const auto pool = MakePool(*t);
  KvSequence sequence = pool->NewSequence();
  Prefill(t.get(), &sequence, std::span(ids).first(64));
  constexpr size_t kRows = 100;
  ASSERT_TRUE(sequence.Reserve(64 + kRows).ok());
  std::vector<float> rows(kRows * kVocab);
  SequenceChunk c;
  c.sequence = &sequence;
  c.tokens = std::span(ids).subspan(64, kRows);
  c.logits = rows.data();
  c.logits_of_every_token = true;
  ASSERT_TRUE(t->Forward(std::span(&c, 1)).ok());
  for (const size_t row : {size_t{0}, size_t{41}, kRows - 1}) {
    KvSequence alone = pool->NewSequence();
    const std::vector<float> expected = Prefill(t.get(), &alone, std::span(ids).first(65 + row));
    EXPECT_EQ(std::memcmp(rows.data() + row * kVocab, expected.data(), kVocab * sizeof(float)), 0)
        << row;
  }
}

TEST_P(ParityTest, ContinuingFromCopiedBytesEqualsAColdRunBitForBit) {
  CAIRN_REQUIRE_MODEL();
  const auto& ids = SharedReference().prompts.at("prose").ids;
  const auto t = Make(GetParam().arithmetic);
  const auto pool = MakePool(*t, 2048);
  KvSequence cold = pool->NewSequence();
  const std::vector<float> expected = Prefill(t.get(), &cold, ids);
  for (const int64_t blocks : {1, 3, 4}) {
    KvSequence warm = pool->NewSequence();
    ASSERT_TRUE(warm.Reserve(static_cast<int64_t>(ids.size())).ok());
    warm.SetLength(blocks * 64);
    // The bytes of a layer arrive only when the pass asks for them.
    std::vector<int> order;
    SequenceChunk c;
    c.sequence = &warm;
    std::vector<float> logits(kVocab);
    c.before_layer = [&](int layer) {
      order.push_back(layer);
      for (int64_t p = 0; p < blocks; ++p) {
        const auto from = static_cast<const KvSequence&>(cold).LayerSlice(p, layer);
        std::memcpy(warm.LayerSlice(p, layer).data(), from.data(), from.size());
      }
      return OkStatus();
    };
    c.tokens = std::span(ids).subspan(static_cast<size_t>(blocks * 64));
    c.logits = logits.data();
    ASSERT_TRUE(t->Forward(std::span(&c, 1)).ok());
    EXPECT_EQ(order.size(), 30u);
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
    EXPECT_EQ(std::memcmp(logits.data(), expected.data(), kVocab * sizeof(float)), 0) << blocks;
    EXPECT_TRUE(FullBlocks(warm) == FullBlocks(cold));
  }
}

TEST_P(ParityTest, WhatElseRunsInACallDoesNotChangeABit) {
  CAIRN_REQUIRE_MODEL();
  const auto& prompts = SharedReference().prompts;
  const auto t = Make(GetParam().arithmetic);
  const auto pool = MakePool(*t, 2048);

  KvSequence alone = pool->NewSequence();
  const std::vector<float> chat = Prefill(t.get(), &alone, prompts.at("chat").ids);
  const int32_t token = Greedy(chat);
  ASSERT_TRUE(alone.Reserve(alone.length() + 1).ok());
  std::vector<float> alone_logits(kVocab);
  SequenceChunk step;
  step.sequence = &alone;
  step.tokens = std::span(&token, 1);
  step.phase = Phase::kDecode;
  step.logits = alone_logits.data();
  ASSERT_TRUE(t->Forward(std::span(&step, 1)).ok());
  const std::span<const int32_t> code_ids = std::span(prompts.at("code").ids).first(100);
  KvSequence code_alone = pool->NewSequence();
  const std::vector<float> code = Prefill(t.get(), &code_alone, code_ids, 128);

  // The decode step, together with a prefill and another decode step.
  KvSequence again = pool->NewSequence(), other = pool->NewSequence(), third = pool->NewSequence();
  Prefill(t.get(), &again, prompts.at("chat").ids);
  Prefill(t.get(), &third, code_ids.first(70));
  ASSERT_TRUE(again.Reserve(again.length() + 1).ok());
  ASSERT_TRUE(third.Reserve(third.length() + 1).ok());
  ASSERT_TRUE(other.Reserve(100).ok());
  std::vector<float> again_logits(kVocab), other_logits(kVocab);
  SequenceChunk chunks[3];
  chunks[0] = {.sequence = &third,
               .tokens = std::span(&token, 1),
               .phase = Phase::kDecode,
               .logits = nullptr,
               .before_layer = nullptr,
               .after_layer = nullptr};
  chunks[1] = {.sequence = &other,
               .tokens = code_ids,
               .phase = Phase::kPrefill,
               .logits = other_logits.data(),
               .before_layer = nullptr,
               .after_layer = nullptr};
  chunks[2] = {.sequence = &again,
               .tokens = std::span(&token, 1),
               .phase = Phase::kDecode,
               .logits = again_logits.data(),
               .before_layer = nullptr,
               .after_layer = nullptr};
  ASSERT_TRUE(t->Forward(chunks).ok());
  EXPECT_EQ(std::memcmp(again_logits.data(), alone_logits.data(), kVocab * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(other_logits.data(), code.data(), kVocab * sizeof(float)), 0);
}

INSTANTIATE_TEST_SUITE_P(Modes, ParityTest,
                         ::testing::Values(Mode{"fast", Arithmetic::kFast, 2e-3},
                                           Mode{"float32", Arithmetic::kFloat32, 1e-5}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(TransformerBackendTest, EveryBackendAgreesWithTheReference) {
  CAIRN_REQUIRE_MODEL();
  const auto& prompt = SharedReference().prompts.at("chat");
  for (const kernels::Backend* backend : kernels::Backends()) {
    if (backend->is_definition) continue;  // Too slow for a real model.
    for (const Mode mode :
         {Mode{"fast", Arithmetic::kFast, 2e-3}, Mode{"float32", Arithmetic::kFloat32, 1e-5}}) {
      const auto t = Make(mode.arithmetic, 2, backend);
      const auto pool = MakePool(*t);
      KvSequence sequence = pool->NewSequence();
      const std::vector<float> logits = Prefill(t.get(), &sequence, prompt.ids);
      EXPECT_LE(Divergence(prompt.logits, logits), mode.most_divergence) << t->numerics_id();
      EXPECT_EQ(Decode(t.get(), &sequence, logits, 8),
                std::vector<int32_t>(prompt.greedy.begin(), prompt.greedy.begin() + 8))
          << t->numerics_id();
    }
  }
}

}  // namespace
}  // namespace cairn::worker
