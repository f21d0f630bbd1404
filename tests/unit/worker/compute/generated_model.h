#pragma once
// Small generated models of every weight type, a forward pass over them that is written again, and
// a transformer with one sequence.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "services/worker/compute/transformer.h"
#include "tests/conformance/kernels/case.h"
#include "tests/unit/model/gguf_builder.h"

namespace cairn::worker::testing {

using kernels::WeightType;

inline constexpr int64_t kHidden = 256, kFfn = 512, kHeads = 4, kKvHeads = 2, kDim = 64,
                         kVocab = 80;
inline constexpr int kLayers = 2;

// The bytes of a model whose matrices have the given types, in turn.
inline std::vector<std::byte> GenerateModel(const std::vector<WeightType>& types) {
  model::testing::GgufBuilder b;
  b.String("general.architecture", "llama").String("general.name", "Generated");
  b.U32("llama.block_count", kLayers).U32("llama.embedding_length", kHidden);
  b.U32("llama.feed_forward_length", kFfn).U32("llama.context_length", 512);
  b.U32("llama.attention.head_count", kHeads).U32("llama.attention.head_count_kv", kKvHeads);
  b.F32("llama.attention.layer_norm_rms_epsilon", 1e-5f).F32("llama.rope.freq_base", 1e4f);
  b.String("tokenizer.ggml.model", "gpt2").String("tokenizer.ggml.pre", "gpt-2");
  std::vector<std::string> tokens = {"a", "b", "ab", "<|im_end|>"};
  std::vector<int32_t> token_types = {1, 1, 1, 3};
  while (tokens.size() < static_cast<size_t>(kVocab)) {
    tokens.push_back(fmt::format("t{}", tokens.size()));
    token_types.push_back(1);
  }
  b.Strings("tokenizer.ggml.tokens", tokens).Ints("tokenizer.ggml.token_type", token_types);
  b.Strings("tokenizer.ggml.merges", {"a b"}).U32("tokenizer.ggml.eos_token_id", 3);
  size_t next = 0;
  const auto matrix = [&](const std::string& name, int64_t cols, int64_t rows) {
    b.Tensor(name, {cols, rows}, types[next++ % types.size()]);
  };
  matrix("token_embd.weight", kHidden, kVocab);
  b.Tensor("output_norm.weight", {kHidden});
  for (int i = 0; i < kLayers; ++i) {
    const std::string layer = "blk." + std::to_string(i) + ".";
    b.Tensor(layer + "attn_norm.weight", {kHidden}).Tensor(layer + "ffn_norm.weight", {kHidden});
    matrix(layer + "attn_q.weight", kHidden, kHeads * kDim);
    matrix(layer + "attn_k.weight", kHidden, kKvHeads * kDim);
    matrix(layer + "attn_v.weight", kHidden, kKvHeads * kDim);
    matrix(layer + "attn_output.weight", kHeads * kDim, kHidden);
    matrix(layer + "ffn_gate.weight", kHidden, kFfn);
    matrix(layer + "ffn_up.weight", kHidden, kFfn);
    matrix(layer + "ffn_down.weight", kFfn, kHidden);
  }
  std::vector<std::byte> bytes = b.Build();
  auto file = model::GgufFile::Parse(bytes, "generated");
  EXPECT_TRUE(file.ok()) << file.status();
  std::mt19937 rng(11);
  for (const model::GgufTensor& t : (*file)->tensors()) {
    const bool k_quant = kernels::BlockElements(t.type) == 256;
    // Numbers of about 0.05: activations then stay near 1 from layer to layer.
    float spread = k_quant ? 1e-4f : 4e-3f;
    if (t.type == WeightType::kQ8_0) spread = 6e-4f;
    if (t.dims.size() == 1) spread = 0.1f;
    kernels::testing::FillWeights(t.type, spread,
                                  {const_cast<std::byte*>(t.data.data()), t.data.size()}, &rng);
  }
  return bytes;
}

// Llama as its paper and the GGUF format state it: one token after the other, pairs of channels
// (2p, 2p + 1) rotated, sums in double, KV not rounded.
class PlainLlama {
 public:
  explicit PlainLlama(const model::Model& model) : m_(model), keys_(kLayers), values_(kLayers) {}

  std::vector<float> Step(int32_t token) {
    const auto position = static_cast<double>(keys_[0].size());
    std::vector<double> x = Row(m_.token_embedding(), token);
    for (int l = 0; l < kLayers; ++l) {
      const model::LayerWeights& w = m_.layer(l);
      std::vector<double> h = Norm(x, w.attn_norm);
      std::vector<double> q = Times(w.q, h), k = Times(w.k, h);
      Rotate(&q, position);
      Rotate(&k, position);
      keys_[static_cast<size_t>(l)].push_back(k);
      values_[static_cast<size_t>(l)].push_back(Times(w.v, h));
      Add(&x, Times(w.o, Attend(static_cast<size_t>(l), q)));
      h = Norm(x, w.ffn_norm);
      std::vector<double> gate = Times(w.gate, h);
      const std::vector<double> up = Times(w.up, h);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1.0 + std::exp(-gate[i]));
      Add(&x, Times(w.down, gate));
    }
    const std::vector<double> logits = Times(m_.output(), Norm(x, m_.output_norm()));
    return {logits.begin(), logits.end()};
  }

 private:
  static std::vector<double> Row(const model::Tensor& t, int64_t r) {
    std::vector<float> row(static_cast<size_t>(t.cols));
    kernels::DequantiseRow(t.type, t.row(r), row.data(), t.cols);
    return {row.begin(), row.end()};
  }
  static std::vector<double> Times(const model::Tensor& t, const std::vector<double>& x) {
    std::vector<double> y(static_cast<size_t>(t.rows));
    for (int64_t r = 0; r < t.rows; ++r) {
      const std::vector<double> row = Row(t, r);
      for (size_t c = 0; c < row.size(); ++c) y[static_cast<size_t>(r)] += row[c] * x[c];
    }
    return y;
  }
  std::vector<double> Norm(const std::vector<double>& x, const model::Tensor& weight) const {
    double sum = 0.0;
    for (const double v : x) sum += v * v;
    std::vector<double> y = Row(weight, 0);
    for (size_t i = 0; i < x.size(); ++i) {
      y[i] *= x[i] / std::sqrt(sum / static_cast<double>(x.size()) + m_.hp().rms_eps);
    }
    return y;
  }
  static void Add(std::vector<double>* x, const std::vector<double>& y) {
    for (size_t i = 0; i < x->size(); ++i) (*x)[i] += y[i];
  }
  void Rotate(std::vector<double>* x, double position) const {
    for (size_t i = 0; i < x->size(); i += 2) {
      const double pair = static_cast<double>(i % kDim) / 2;
      const double angle = position * std::pow(m_.hp().rope_base, -2.0 * pair / kDim);
      const double a = (*x)[i], b = (*x)[i + 1];
      (*x)[i] = a * std::cos(angle) - b * std::sin(angle);
      (*x)[i + 1] = a * std::sin(angle) + b * std::cos(angle);
    }
  }
  std::vector<double> Attend(size_t layer, const std::vector<double>& q) const {
    std::vector<double> out(q.size());
    for (size_t h = 0; h < kHeads; ++h) {
      const size_t from = h * kDim, kv = h / (kHeads / kKvHeads) * kDim;
      std::vector<double> p;
      double sum = 0.0;
      for (const auto& k : keys_[layer]) {
        double s = 0.0;
        for (size_t d = 0; d < kDim; ++d) s += q[from + d] * k[kv + d];
        p.push_back(std::exp(s / 8.0));
        sum += p.back();
      }
      for (size_t t = 0; t < p.size(); ++t) {
        for (size_t d = 0; d < kDim; ++d) {
          out[from + d] += p[t] / sum * values_[layer][t][kv + d];
        }
      }
    }
    return out;
  }

  const model::Model& m_;
  std::vector<std::vector<std::vector<double>>> keys_, values_;
};

// Relative root-mean-square distance.
inline double Distance(const std::vector<float>& want, const std::vector<float>& got) {
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (want[i] - got[i]) * (want[i] - got[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

inline std::vector<int32_t> Tokens(int64_t n) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>(i * i * 7 % kVocab));
  return tokens;
}

class GeneratedModel {
 public:
  explicit GeneratedModel(const std::vector<WeightType>& types) : bytes_(GenerateModel(types)) {
    auto parsed = model::Model::Parse(bytes_, "generated");
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    model_ = std::move(parsed).value();
  }
  const model::Model& operator*() const { return *model_; }

 private:
  std::vector<std::byte> bytes_;
  std::unique_ptr<model::Model> model_;
};

// A transformer with a pool and one sequence.
struct Runner {
  Runner(const model::Model& model, const Transformer::Options& options) {
    auto made = Transformer::Create(model, options);
    EXPECT_TRUE(made.ok()) << made.status();
    transformer = std::move(made).value();
    auto pool_made = KvPool::Create(transformer->kv_layout(), 4 << 20);
    EXPECT_TRUE(pool_made.ok()) << pool_made.status();
    pool = std::move(pool_made).value();
    sequence = pool->NewSequence();
    logits.resize(static_cast<size_t>(transformer->vocab()));
  }
  Status Run(std::span<const int32_t> tokens, Phase phase) {
    CAIRN_RETURN_IF_ERROR(
        sequence.Reserve(sequence.length() + static_cast<int64_t>(tokens.size())));
    SequenceChunk c;
    c.sequence = &sequence;
    c.tokens = tokens;
    c.phase = phase;
    c.logits = logits.data();
    return transformer->Forward(std::span(&c, 1));
  }

  std::unique_ptr<Transformer> transformer;
  std::unique_ptr<KvPool> pool;
  KvSequence sequence;
  std::vector<float> logits;
};

inline const std::vector<WeightType> kKQuants = {WeightType::kQ6_K, WeightType::kQ4_K,
                                                 WeightType::kQ5_K};
inline const std::vector<WeightType> kOthers = {
    WeightType::kQ8_0, WeightType::kQ4_0, WeightType::kF16, WeightType::kQ5_0,
    WeightType::kQ5_1, WeightType::kBF16, WeightType::kF32, WeightType::kQ4_1};

}  // namespace cairn::worker::testing
