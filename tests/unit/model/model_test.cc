#include "model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "common/status/matchers.h"
#include "tests/unit/model/tiny_model.h"

namespace cairn::model {
namespace {

using cairn::testing::StatusIs;
using kernels::WeightType;
using ::testing::AllOf;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::TinyModel;

Status LoadStatus(const TinyModel& tiny) {
  const auto bytes = tiny.Build();
  return Model::Parse(bytes, "dir/tiny.gguf").status();
}

Status LoadWith(std::function<void(GgufBuilder&)> extra) {
  TinyModel tiny;
  tiny.extra = std::move(extra);
  return LoadStatus(tiny);
}

TEST(ModelTest, LoadsEverything) {
  const auto bytes = TinyModel().Build();
  auto loaded = Model::Parse(bytes, "dir/tiny.gguf");
  ASSERT_OK(loaded);
  const Model& model = **loaded;
  const Hyperparameters& hp = model.hp();
  EXPECT_EQ(hp.layers, 1);
  EXPECT_EQ(hp.hidden, 64);
  EXPECT_EQ(hp.ffn, 96);
  EXPECT_EQ(hp.heads, 2);
  EXPECT_EQ(hp.kv_heads, 1);
  EXPECT_EQ(hp.head_dim, 32);
  EXPECT_EQ(hp.rope_dim, 32);
  EXPECT_EQ(hp.context, 128);
  EXPECT_EQ(hp.vocab, 6);
  EXPECT_EQ(hp.rope_base, 1e4f);
  EXPECT_EQ(hp.rms_eps, 1e-5f);
  EXPECT_EQ(model.name(), "Tiny");
  EXPECT_EQ(model.layer(0).down.rows, 64);
  EXPECT_EQ(model.layer(0).down.cols, 96);
  EXPECT_EQ(model.layer(0).k.type, WeightType::kQ4_0);
  EXPECT_EQ(model.layer(0).k.row(2) - model.layer(0).k.row(1), 36);
  EXPECT_EQ(model.output().data.data(), model.token_embedding().data.data()) << "tied";
  EXPECT_EQ(model.weights_digest(),
            Sha256::Of({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  EXPECT_THAT(model.chat_template(),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("chat_template")));
}

TEST(ModelTest, OutputTensorOfItsOwn) {
  TinyModel tiny;
  tiny.extra = [](GgufBuilder& b) { b.Tensor("output.weight", {64, 6}, WeightType::kF16); };
  const auto bytes = tiny.Build();
  auto model = Model::Parse(bytes, "tiny.gguf");
  ASSERT_OK(model);
  EXPECT_EQ((*model)->output().type, WeightType::kF16);
}

TEST(ModelTest, NamesWhatIsNotSupported) {
  TinyModel tiny;
  tiny.architecture = "mamba";
  EXPECT_THAT(LoadStatus(tiny),
              StatusIs(StatusCode::kUnimplemented,
                       AllOf(HasSubstr("'mamba'"), HasSubstr("supported: llama"))));
  EXPECT_THAT(LoadWith([](GgufBuilder& b) { b.Tensor("rope_freqs.weight", {16}); }),
              StatusIs(StatusCode::kUnimplemented,
                       AllOf(HasSubstr("'rope_freqs.weight'"), HasSubstr("F32"))));
  EXPECT_THAT(LoadWith([](GgufBuilder& b) { b.Tensor("blk.0.attn_q.bias", {64}); }),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("'blk.0.attn_q.bias'")));
  EXPECT_THAT(LoadWith([](GgufBuilder& b) { b.Tensor("blk.1.attn_norm.weight", {64}); }),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("'blk.1.attn_norm.weight'")));
  EXPECT_THAT(LoadWith([](GgufBuilder& b) { b.String("llama.rope.scaling.type", "yarn"); }),
              StatusIs(StatusCode::kUnimplemented,
                       AllOf(HasSubstr("'llama.rope.scaling.type'"), HasSubstr("'yarn'"))));
  EXPECT_THAT(LoadWith([](GgufBuilder& b) { b.F32("llama.rope.scaling.factor", 2); }),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("'llama.rope.scaling.factor'")));
  EXPECT_THAT(LoadWith([](GgufBuilder& b) { b.U32("llama.expert_count", 8); }),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("experts")));
  EXPECT_THAT(LoadWith([](GgufBuilder& b) { b.Bool("tokenizer.ggml.add_eos_token", true); }),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("add_eos_token")));
}

TEST(ModelTest, WithoutScalingIsFine) {
  EXPECT_OK(LoadWith([](GgufBuilder& b) { b.String("llama.rope.scaling.type", "none"); }));
  EXPECT_OK(LoadWith([](GgufBuilder& b) { b.U32("llama.expert_count", 0); }));
}

TEST(ModelTest, NamesMissingAndMisshapenTensors) {
  const auto bytes = TinyModel().Build();
  auto model = Model::Parse(bytes, "tiny.gguf");
  ASSERT_OK(model);
  const LayerWeights& layer = (*model)->layer(0);
  for (const Tensor* tensor :
       {&(*model)->token_embedding(), &(*model)->output_norm(), &layer.attn_norm, &layer.q,
        &layer.k, &layer.v, &layer.o, &layer.ffn_norm, &layer.gate, &layer.up, &layer.down}) {
    TinyModel tiny;
    tiny.leave_out = tensor->name;
    EXPECT_THAT(LoadStatus(tiny),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("'" + tensor->name + "'"), HasSubstr("missing"))));
  }
  TinyModel tiny;
  tiny.ffn_tensor_rows = 95;
  EXPECT_THAT(LoadStatus(tiny),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'blk.0.ffn_gate.weight'"), HasSubstr("[64, 95]"),
                             HasSubstr("expected [64, 96]"))));
}

TEST(ModelTest, ChecksHyperparameters) {
  TinyModel tiny;
  tiny.kv_heads = 0;
  EXPECT_THAT(LoadStatus(tiny),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("head_count_kv"), HasSubstr("is 0, expected 1 to 2"))));
  tiny = TinyModel();
  tiny.layers = 100000;
  EXPECT_THAT(LoadStatus(tiny),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("block_count' is 100000")));
  EXPECT_THAT(LoadWith([](GgufBuilder& b) { b.U32("llama.rope.dimension_count", 31); }),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("even")));
  EXPECT_THAT(LoadWith([](GgufBuilder& b) { b.U32("llama.attention.value_length", 16); }),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("value_length' is 16")));
  EXPECT_THAT(LoadWith([](GgufBuilder& b) { b.U32("llama.vocab_size", 7); }),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("vocab_size' is 7, expected 6")));
}

TEST(ModelTest, UnsupportedTemplateIsAnErrorOnlyWhenAskedFor) {
  TinyModel tiny;
  tiny.extra = [](GgufBuilder& b) { b.String("tokenizer.chat_template", "{{ messages }}"); };
  const auto bytes = tiny.Build();
  auto model = Model::Parse(bytes, "tiny.gguf");
  ASSERT_OK(model);
  EXPECT_THAT((*model)->chat_template(), StatusIs(StatusCode::kUnimplemented, HasSubstr("--raw")));
}

TEST(HalfSplitRowTest, PutsTheFirstOfEachPairInFront) {
  Hyperparameters hp;
  hp.head_dim = 8;
  hp.rope_dim = 6;
  const std::vector<int64_t> expected = {0, 2, 4, 1, 3, 5, 6, 7, 8, 10, 12, 9, 11, 13, 14, 15};
  for (size_t r = 0; r < expected.size(); ++r) {
    EXPECT_EQ(HalfSplitRow(hp, static_cast<int64_t>(r)), expected[r]) << "row " << r;
  }
}

// Every strict prefix of a good file must be refused, naming where it ends.
TEST(ModelRobustnessTest, EveryTruncationIsAnError) {
  const auto bytes = TinyModel().Build();
  for (size_t size = 0; size < bytes.size(); ++size) {
    // A copy of exactly this size, so that the sanitizer sees a read beyond it.
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<long>(size));
    const Status status = Model::Parse(cut, "cut.gguf").status();
    ASSERT_FALSE(status.ok()) << "cut to " << size << " of " << bytes.size() << " bytes";
    if (size >= 4) {
      ASSERT_THAT(status, StatusIs(StatusCode::kDataLoss, HasSubstr("byte")))
          << "cut to " << size << " bytes";
    }
  }
}

// Flipped bits and random bytes in the header: an error or a model that can be read from end to
// end, never a crash.
TEST(ModelRobustnessTest, CorruptHeadersNeverCrash) {
  const GgufBuilder builder = TinyModel().Builder();
  const auto good = builder.Build();
  const size_t header = builder.HeaderBytes();
  int refused = 0;
  constexpr int kRounds = 8000;
  for (int seed = 0; seed < kRounds; ++seed) {
    std::mt19937_64 rng(static_cast<uint64_t>(seed));
    auto bytes = good;
    const int changes = 1 + static_cast<int>(rng() % 3);
    for (int i = 0; i < changes; ++i) {
      const size_t at = rng() % header;
      switch (rng() % 3) {
        case 0:
          bytes[at] ^= static_cast<std::byte>(1 << rng() % 8);
          break;
        case 1:
          bytes[at] = static_cast<std::byte>(rng());
          break;
        default:  // Lengths and offsets with many bits set.
          for (size_t k = at; k < std::min(at + 8, header); ++k) bytes[k] = std::byte{0xff};
      }
    }
    auto model = Model::Parse(bytes, "corrupt.gguf");
    if (!model.ok()) {
      ++refused;
      ASSERT_FALSE(model.status().message().empty()) << "seed " << seed;
      continue;
    }
    const Tokenizer& tokenizer = (*model)->tokenizer();
    auto ids = tokenizer.Encode("ab ba<|im_end|>", true);
    ASSERT_OK(ids) << "seed " << seed;
    for (const TokenId id : *ids) ASSERT_LT(id, tokenizer.vocab_size()) << "seed " << seed;
    std::vector<float> row(static_cast<size_t>((*model)->hp().hidden));
    const Tensor& embedding = (*model)->token_embedding();
    for (int64_t r = 0; r < embedding.rows; ++r) {
      kernels::DequantiseRow(embedding.type, embedding.row(r), row.data(), embedding.cols);
    }
  }
  EXPECT_GT(refused, kRounds / 2);
}

}  // namespace
}  // namespace cairn::model
