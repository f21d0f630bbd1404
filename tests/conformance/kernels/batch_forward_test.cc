// A small model that runs on the operations of a batch alone: prompts of two sequences together,
// then tokens that are decoded, against the same model in double with the same roundings.

#include <numeric>

#include "tests/conformance/kernels/batch_case.h"

namespace cairn::kernels {
namespace {

using testing::BackendCaseName;
using testing::Bfloat16Of;
using testing::Device;
using testing::HalfOf;

constexpr int64_t kLayers = 2, kHeads = 2, kKvHeads = 1, kDim = 64, kHidden = kHeads * kDim;
constexpr int64_t kFfn = 96, kVocab = 48, kBlock = 16, kPages = 6, kContext = 64;
constexpr int64_t kQkv = (kHeads + 2 * kKvHeads) * kDim;
constexpr float kEps = 1e-5f, kScale = 0.125f;

double Round16(double x) { return Bfloat16ToFloat(Bfloat16Of(static_cast<float>(x))); }
double RoundHalf(double x) { return HalfToFloat(HalfOf(static_cast<float>(x))); }

// A quantised matrix, and what it is after dequantisation to bfloat16.
struct Matrix {
  Matrix(WeightType t, int64_t r, int64_t c, float spread, std::mt19937* rng)
      : type(t), rows(r), cols(c), bytes(static_cast<size_t>(r * RowBytes(t, c))) {
    testing::FillWeights(t, spread, bytes, rng);
    numbers.resize(static_cast<size_t>(r * c));
    for (int64_t i = 0; i < r; ++i) {
      DequantiseRow(t, bytes.data() + i * RowBytes(t, c), numbers.data() + i * c, c);
    }
  }
  // The product with a vector.
  std::vector<double> Times(const std::vector<double>& x) const {
    std::vector<double> y(static_cast<size_t>(rows));
    for (size_t r = 0; r < y.size(); ++r) {
      for (size_t c = 0; c < x.size(); ++c) y[r] += Round16(numbers[r * x.size() + c]) * x[c];
    }
    return y;
  }

  WeightType type;
  int64_t rows, cols;
  std::vector<std::byte> bytes;
  std::vector<float> numbers;
};

struct Layer {
  Matrix qkv, o, gate_up, down;
  std::vector<float> attention_norm, ffn_norm;
};

struct Model {
  explicit Model(std::mt19937* rng)
      : embedding(WeightType::kF16, kVocab, kHidden, 0.1f, rng),
        output(WeightType::kQ8_0, kVocab, kHidden, 0.002f, rng),
        output_norm(Norm(rng)) {
    for (int64_t i = 0; i < kLayers; ++i) {
      layers.push_back({Matrix(WeightType::kQ8_0, kQkv, kHidden, 0.002f, rng),
                        Matrix(WeightType::kQ4_0, kHidden, kHidden, 0.02f, rng),
                        Matrix(WeightType::kQ4_1, 2 * kFfn, kHidden, 0.02f, rng),
                        Matrix(WeightType::kQ5_1, kHidden, kFfn, 0.02f, rng), Norm(rng),
                        Norm(rng)});
    }
    for (int64_t p = 0; p < kContext; ++p) {
      for (int64_t i = 0; i < kDim / 2; ++i) {
        const double angle =
            static_cast<double>(p) *
            std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(kDim));
        cosine.push_back(static_cast<float>(std::cos(angle)));
        sine.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  static std::vector<float> Norm(std::mt19937* rng) {
    std::normal_distribution<float> normal(1.0f, 0.1f);
    std::vector<float> v(kHidden);
    for (float& x : v) x = normal(*rng);
    return v;
  }

  Matrix embedding, output;
  std::vector<float> output_norm;
  std::vector<Layer> layers;
  std::vector<float> cosine, sine;
};

// ---- in double, token by token ----

class PlainSequence {
 public:
  explicit PlainSequence(const Model& model) : model_(model), keys_(kLayers), values_(kLayers) {}

  // The logits behind the token.
  std::vector<double> Next(int32_t token) {
    std::vector<double> x;
    for (size_t c = 0; c < kHidden; ++c) {
      x.push_back(model_.embedding.numbers[static_cast<size_t>(token) * kHidden + c]);
    }
    for (size_t i = 0; i < kLayers; ++i) {
      const Layer& layer = model_.layers[i];
      Add(layer.o.Times(Attend(i, layer.qkv.Times(Normed(x, layer.attention_norm)))), &x);
      const std::vector<double> both = layer.gate_up.Times(Normed(x, layer.ffn_norm));
      std::vector<double> active;
      for (size_t f = 0; f < kFfn; ++f) {
        active.push_back(Round16(both[f] / (1 + std::exp(-both[f])) * both[kFfn + f]));
      }
      Add(layer.down.Times(active), &x);
    }
    ++position_;
    return model_.output.Times(Normed(x, model_.output_norm));
  }

 private:
  static void Add(const std::vector<double>& y, std::vector<double>* x) {
    for (size_t i = 0; i < y.size(); ++i) (*x)[i] += y[i];
  }
  static std::vector<double> Normed(const std::vector<double>& x,
                                    const std::vector<float>& weight) {
    double sum = 0;
    for (const double v : x) sum += v * v;
    const double inverse = 1 / std::sqrt(sum / static_cast<double>(x.size()) + double{kEps});
    std::vector<double> y;
    for (size_t i = 0; i < x.size(); ++i) y.push_back(Round16(x[i] * inverse * weight[i]));
    return y;
  }
  std::vector<double> Attend(size_t layer, std::vector<double> qkv) {
    const size_t angle = position_ * kDim / 2;
    for (size_t h = 0; h < kHeads + kKvHeads; ++h) {
      for (size_t p = 0; p < kDim / 2; ++p) {
        double& x = qkv[h * kDim + p];
        double& y = qkv[h * kDim + p + kDim / 2];
        const double c = model_.cosine[angle + p], s = model_.sine[angle + p], first = x;
        x = first * c - y * s;
        y = y * c + first * s;
      }
    }
    for (double& v : qkv) v = RoundHalf(v);
    const auto k = qkv.begin() + kHeads * kDim;
    keys_[layer].emplace_back(k, k + kDim);
    values_[layer].emplace_back(k + kDim, k + 2 * kDim);
    std::vector<double> out;
    for (size_t h = 0; h < kHeads; ++h) {
      std::vector<double> sum(kDim);
      double weights = 0;
      for (size_t t = 0; t < keys_[layer].size(); ++t) {
        double score = 0;
        for (size_t d = 0; d < kDim; ++d) score += qkv[h * kDim + d] * keys_[layer][t][d];
        const double weight = std::exp(score * double{kScale});
        weights += weight;
        for (size_t d = 0; d < kDim; ++d) sum[d] += weight * values_[layer][t][d];
      }
      for (const double s : sum) out.push_back(Round16(s / weights));
    }
    return out;
  }

  const Model& model_;
  size_t position_ = 0;
  std::vector<std::vector<std::vector<double>>> keys_, values_;  // [layer][token][kDim]
};

// ---- on a backend, all sequences at once ----

class BatchModel {
 public:
  BatchModel(Device& device, const Model& model)
      : device_(device),
        model_(model),
        embedding_(device.In(model.embedding.bytes)),
        output_(Dequantised(model.output)),
        output_norm_(device.In(model.output_norm)),
        cosine_(device.In(model.cosine)),
        sine_(device.In(model.sine)),
        pool_(device.Allocate<std::byte>(kPages * kPageBytes)) {
    for (const Layer& l : model.layers) {
      layers_.push_back({Dequantised(l.qkv), Dequantised(l.o), Dequantised(l.gate_up),
                         Dequantised(l.down), device.In(l.attention_norm), device.In(l.ffn_norm)});
    }
    // NaN, in case something reads what nothing wrote.
    const std::vector<std::byte> nan(kPages * kPageBytes, std::byte{0xff});
    device.CopyIn(pool_, nan.data(), nan.size());
  }

  // Tokens of each sequence behind those that it has: a prompt, or one token each. The logits
  // behind the last one, and the best token.
  struct Answer {
    std::vector<float> logits;
    int32_t best;
  };
  std::vector<Answer> Run(const std::vector<std::vector<int32_t>>& tokens, bool decodes) {
    std::vector<int32_t> all, last;
    std::vector<batch::KvPlace> places;
    std::vector<batch::PromptChunk> chunks;
    std::vector<batch::SequenceKv> sequences;
    lengths_.resize(tokens.size());
    for (size_t s = 0; s < tokens.size(); ++s) {
      const std::byte* const* const pages = PagesOf(s);
      chunks.push_back({{pages, nullptr, lengths_[s]}, std::ssize(all), std::ssize(tokens[s])});
      for (const int32_t token : tokens[s]) {
        const int64_t t = lengths_[s]++;
        places.push_back(
            {PageAt(s, t / kBlock), static_cast<int32_t>(t % kBlock), static_cast<int32_t>(t)});
        all.push_back(token);
      }
      sequences.push_back({pages, nullptr, lengths_[s]});
      last.push_back(static_cast<int32_t>(std::ssize(all) - 1));
    }
    const int64_t rows = std::ssize(all);
    gemm_ = decodes ? &batch::ForwardKernels::gemm_few_rows : &batch::ForwardKernels::gemm;
    auto* const x = device_.Allocate<float>(static_cast<size_t>(rows * kHidden));
    device_.Run(&batch::ForwardKernels::embed,
                {model_.embedding.type, embedding_, device_.In(all), x, rows, kHidden, kHidden});
    const batch::KvPlace* const where = device_.In(places);
    for (size_t i = 0; i < kLayers; ++i) {
      const uint16_t* const q = Project(i, x, rows, where);
      auto* const attended = device_.Allocate<uint16_t>(static_cast<size_t>(rows * kHidden));
      if (decodes) {
        const int64_t splits = 1;
        auto* const scratch = device_.Allocate<float>(
            static_cast<size_t>(batch::DecodeScratchFloats(rows, splits, Form(i))));
        device_.Run(&batch::ForwardKernels::attend_decode,
                    {Form(i), device_.In(sequences), q, attended, rows, kHidden, kHidden, splits,
                     kScale, scratch});
      } else {
        device_.Run(&batch::ForwardKernels::attend_prompt,
                    {Form(i), device_.In(chunks), std::ssize(chunks), rows, q, attended, kHidden,
                     kHidden, kScale});
      }
      Multiply(attended, layers_[i].o, x, rows, kHidden, kHidden, true);
      FeedForward(i, x, rows);
    }
    return Answers(x, last);
  }

 private:
  struct DeviceLayer {
    const uint16_t *qkv, *o, *gate_up, *down;
    const float *attention_norm, *ffn_norm;
  };
  static constexpr size_t kHeadBytes = kBlock * kDim * 2;
  static constexpr size_t kLayerBytes = 2 * kKvHeads * kHeadBytes;
  static constexpr size_t kPageBytes = kLayers * kLayerBytes;

  const uint16_t* Dequantised(const Matrix& m) {
    auto* const out = device_.Allocate<uint16_t>(static_cast<size_t>(m.rows * m.cols));
    device_.Run(&batch::ForwardKernels::dequantise,
                {m.type, device_.In(m.bytes), nullptr, out, m.rows, m.cols, m.cols});
    return out;
  }
  // Pages of the two sequences in turn.
  std::byte* PageAt(size_t sequence, int64_t page) const {
    return pool_ + (static_cast<size_t>(page) * 2 + sequence) * kPageBytes;
  }
  const std::byte* const* PagesOf(size_t sequence) {
    std::vector<const std::byte*> pages;
    for (int64_t p = 0; p < kPages / 2; ++p) pages.push_back(PageAt(sequence, p));
    return device_.In(pages);
  }
  static batch::KvForm Form(size_t layer) {
    batch::KvForm form;
    form.kv_heads = kKvHeads;
    form.group = kHeads / kKvHeads;
    form.head_dim = kDim;
    form.block_tokens = kBlock;
    form.k_offset = layer * kLayerBytes;
    form.v_offset = form.k_offset + kKvHeads * kHeadBytes;
    form.head_stride = kHeadBytes;
    return form;
  }

  void Multiply(const uint16_t* a, const uint16_t* w, float* y, int64_t rows, int64_t outputs,
                int64_t cols, bool accumulate) {
    device_.Run(gemm_, {a, w, y, rows, outputs, cols, cols, cols, outputs, accumulate});
  }
  const uint16_t* Normed(const float* x, const float* weight, int64_t rows,
                         const int32_t* source = nullptr) {
    auto* const y = device_.Allocate<uint16_t>(static_cast<size_t>(rows * kHidden));
    device_.Run(&batch::ForwardKernels::rms_norm,
                {x, source, weight, y, rows, kHidden, kHidden, kHidden, kEps});
    return y;
  }
  // Queries; keys and values go to the pages.
  const uint16_t* Project(size_t i, const float* x, int64_t rows, const batch::KvPlace* places) {
    auto* const qkv = device_.Allocate<float>(static_cast<size_t>(rows * kQkv));
    Multiply(Normed(x, layers_[i].attention_norm, rows), layers_[i].qkv, qkv, rows, kQkv, kHidden,
             false);
    batch::RotateAndStoreArgs a;
    a.q = qkv;
    a.k = qkv + kHeads * kDim;
    a.v = qkv + (kHeads + kKvHeads) * kDim;
    a.q_out = device_.Allocate<uint16_t>(static_cast<size_t>(rows * kHidden));
    a.places = places;
    a.cosine = cosine_;
    a.sine = sine_;
    a.rows = rows;
    a.in_stride = kQkv;
    a.heads = kHeads;
    a.kv_heads = kKvHeads;
    a.head_dim = a.rope_dim = kDim;
    a.k_offset = Form(i).k_offset;
    a.v_offset = Form(i).v_offset;
    a.head_stride = kHeadBytes;
    device_.Run(&batch::ForwardKernels::rotate_and_store, a);
    return a.q_out;
  }
  void FeedForward(size_t i, float* x, int64_t rows) {
    auto* const both = device_.Allocate<float>(static_cast<size_t>(rows * 2 * kFfn));
    auto* const active = device_.Allocate<uint16_t>(static_cast<size_t>(rows * kFfn));
    Multiply(Normed(x, layers_[i].ffn_norm, rows), layers_[i].gate_up, both, rows, 2 * kFfn,
             kHidden, false);
    device_.Run(&batch::ForwardKernels::swiglu,
                {both, both + kFfn, active, rows, kFfn, 2 * kFfn, kFfn});
    Multiply(active, layers_[i].down, x, rows, kHidden, kFfn, true);
  }
  std::vector<Answer> Answers(const float* x, const std::vector<int32_t>& last) {
    const int64_t rows = std::ssize(last);
    auto* const logits = device_.Allocate<float>(static_cast<size_t>(rows * kVocab));
    auto* const best = device_.Allocate<int32_t>(static_cast<size_t>(rows));
    Multiply(Normed(x, output_norm_, rows, device_.In(last)), output_, logits, rows, kVocab,
             kHidden, false);
    device_.Run(&batch::ForwardKernels::arg_max, {logits, best, rows, kVocab, kVocab});
    const std::vector<float> all = device_.Out(logits, static_cast<size_t>(rows * kVocab));
    const std::vector<int32_t> tokens = device_.Out(best, static_cast<size_t>(rows));
    std::vector<Answer> answers;
    for (int64_t r = 0; r < rows; ++r) {
      answers.push_back({{all.begin() + r * kVocab, all.begin() + (r + 1) * kVocab},
                         tokens[static_cast<size_t>(r)]});
    }
    return answers;
  }

  Device& device_;
  const Model& model_;
  const std::byte* embedding_;
  const uint16_t* output_;
  const float *output_norm_, *cosine_, *sine_;
  std::byte* pool_;
  std::vector<DeviceLayer> layers_;
  std::vector<int64_t> lengths_;
  batch::Op<batch::GemmArgs> batch::ForwardKernels::*gemm_ = nullptr;
};

class BatchForwardTest : public testing::BatchTest {};

TEST_P(BatchForwardTest, AModelAnswersAsInDouble) {
  const Model model(&rng());
  BatchModel batch(here(), model);
  std::vector<PlainSequence> plain(2, PlainSequence(model));
  std::vector<std::vector<int32_t>> tokens(2);
  for (int i = 0; i < 21; ++i) tokens[0].push_back(static_cast<int32_t>(rng()() % kVocab));
  for (int i = 0; i < 5; ++i) tokens[1].push_back(static_cast<int32_t>(rng()() % kVocab));
  for (int step = 0; step < 4; ++step) {
    const auto got = batch.Run(tokens, step > 0);
    for (size_t s = 0; s < 2; ++s) {
      std::vector<double> want;
      for (const int32_t token : tokens[s]) want = plain[s].Next(token);
      double largest = 0;
      for (const double x : want) largest = std::max(largest, std::fabs(x));
      // Where sums differ in their last bits, some activations are rounded the other way.
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_NEAR(got[s].logits[i], want[i], 0.01 * largest)
            << "step " << step << ", token " << i;
      }
      EXPECT_EQ(got[s].best, std::max_element(got[s].logits.begin(), got[s].logits.end()) -
                                 got[s].logits.begin());
      tokens[s] = {got[s].best};
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, BatchForwardTest, ::testing::ValuesIn(testing::BackendNames()),
                         BackendCaseName);

}  // namespace
}  // namespace cairn::kernels
