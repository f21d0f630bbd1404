// The forward pass on a model that uses every weight type, K-quants included, against logits that
// numpy computed in float64 (tests/data/gguf/make_kquant_model.py).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/status/matchers.h"
#include "model/model.h"
#include "services/worker/compute/transformer.h"
#include "services/worker/kv/kv_pool.h"

namespace cairn::worker {
namespace {

struct Reference {
  struct Position {
    uint32_t position;
    std::vector<float> logits;
  };
  std::vector<int32_t> ids;
  std::vector<Position> positions;
};

Reference ReadReference(size_t vocab) {
  std::ifstream in("tests/data/gguf/kquant.bin", std::ios::binary);
  const auto read = [&](void* to, size_t bytes) {
    in.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
  };
  Reference out;
  uint32_t count = 0;
  read(&count, sizeof(count));
  out.ids.resize(count);
  read(out.ids.data(), count * sizeof(int32_t));
  read(&count, sizeof(count));
  for (uint32_t i = 0; i < count; ++i) {
    Reference::Position p;
    p.logits.resize(vocab);
    read(&p.position, sizeof(p.position));
    read(p.logits.data(), vocab * sizeof(float));
    out.positions.push_back(std::move(p));
  }
  EXPECT_TRUE(in.good()) << "tests/data/gguf/kquant.bin is missing or short";
  return out;
}

// KL(expected || actual) of the softmax distributions, in nat.
double Divergence(const std::vector<float>& expected, const std::vector<float>& actual) {
  const auto log_softmax = [](const std::vector<float>& x) {
    const double max = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const float v : x) sum += std::exp(v - max);
    std::vector<double> out;
    for (const float v : x) out.push_back(v - max - std::log(sum));
    return out;
  };
  const std::vector<double> p = log_softmax(expected), q = log_softmax(actual);
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
  return kl;
}

struct Mode {
  const char* name;
  Arithmetic arithmetic;
  double max_kl;
};

class KQuantModelTest : public ::testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    auto model = model::Model::Load("tests/data/gguf/kquant.gguf");
    ASSERT_OK(model);
    model_ = std::move(*model);
    Transformer::Options options;
    options.arithmetic = GetParam().arithmetic;
    options.threads = 2;
    auto transformer = Transformer::Create(*model_, options);
    ASSERT_OK(transformer);
    transformer_ = std::move(*transformer);
    auto pool = KvPool::Create(transformer_->kv_layout(), size_t{16} << 20);
    ASSERT_OK(pool);
    pool_ = std::move(*pool);
  }

  Status Forward(KvSequence& sequence, std::span<const int32_t> ids, Phase phase, float* logits) {
    CAIRN_RETURN_IF_ERROR(sequence.Reserve(sequence.length() + std::ssize(ids)));
    SequenceChunk chunk;
    chunk.sequence = &sequence;
    chunk.tokens = ids;
    chunk.phase = phase;
    chunk.logits = logits;
    return transformer_->Forward(std::span(&chunk, 1));
  }

  // Prefills ids[0, end) block by block; the last `decoded` tokens go through decode steps.
  std::vector<float> LogitsAfter(std::span<const int32_t> ids, size_t decoded) {
    std::vector<float> logits(static_cast<size_t>(model_->hp().vocab));
    KvSequence sequence = pool_->NewSequence();
    const auto block = static_cast<size_t>(transformer_->kv_layout().block_tokens);
    const size_t prefilled = ids.size() - decoded;
    for (size_t at = 0; at < prefilled; at += block) {
      const size_t n = std::min(block, prefilled - at);
      EXPECT_OK(Forward(sequence, ids.subspan(at, n), Phase::kPrefill, logits.data()));
    }
    for (size_t at = prefilled; at < ids.size(); ++at) {
      EXPECT_OK(Forward(sequence, ids.subspan(at, 1), Phase::kDecode, logits.data()));
    }
    return logits;
  }

  void Compare(size_t decoded) {
    const Reference reference = ReadReference(static_cast<size_t>(model_->hp().vocab));
    for (const auto& [position, expected] : reference.positions) {
      const auto ids = std::span(reference.ids).first(position + 1);
      if (ids.size() <= decoded) continue;
      const std::vector<float> logits = LogitsAfter(ids, decoded);
      const double kl = Divergence(expected, logits);
      EXPECT_LE(kl, GetParam().max_kl) << "after position " << position;
      RecordProperty("kl_at_" + std::to_string(position), std::to_string(kl));
    }
  }

  std::unique_ptr<model::Model> model_;
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<KvPool> pool_;
};

TEST_P(KQuantModelTest, TheModelUsesEveryWeightType) {
  std::set<kernels::WeightType> types = {model_->token_embedding().type, model_->output().type};
  for (int i = 0; i < model_->hp().layers; ++i) {
    const model::LayerWeights& w = model_->layer(i);
    for (const model::Tensor* t :
         {&w.attn_norm, &w.q, &w.k, &w.v, &w.o, &w.ffn_norm, &w.gate, &w.up, &w.down}) {
      types.insert(t->type);
    }
  }
  EXPECT_EQ(types.size(), static_cast<size_t>(kernels::kWeightTypeCount));
}

TEST_P(KQuantModelTest, PrefillEqualsTheReference) { Compare(0); }

TEST_P(KQuantModelTest, DecodeEqualsTheReference) { Compare(20); }

INSTANTIATE_TEST_SUITE_P(Arithmetics, KQuantModelTest,
                         ::testing::Values(Mode{"Float32", Arithmetic::kFloat32, 1e-5},
                                           Mode{"Fast", Arithmetic::kFast, 2e-3}),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace cairn::worker
