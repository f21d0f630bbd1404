// cairn_seeded_model: writes a GGUF file of the Llama family with random weights, in the shapes of
// an 8B model, tiny ones, or those of a model of few weights whose KV is as large as that of
// SmolLM2-135M and whose context is long. And a prompt for it. So a machine needs no download to
// measure a worker.
//
//   cairn_seeded_model 8b|tiny|long MODEL.gguf PROMPT.txt TOKENS
//
// The same files at every run; one that exists is never overwritten. Each letter of the prompt is a
// token. Matrices are in Q4_0.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "tests/support/half.h"
#include "tests/unit/model/gguf_builder.h"

namespace cairn::gpu {
namespace {

using kernels::WeightType;
using model::testing::FileNumber;
using model::testing::GgufBuilder;

struct Shapes {
  uint32_t layers, hidden, ffn, heads, kv_heads, vocab, context;
};
constexpr Shapes k8b = {32, 4096, 14336, 32, 8, 128256, 40960};
constexpr Shapes kTiny = {2, 256, 512, 4, 2, 80, 512};
constexpr Shapes kLong = {30, 192, 512, 3, 3, 80, 40960};

constexpr char kLetters[] = "acdefghijklmnopqrstuvwxyz";  // No b: "a b" is a merge.

// A file whose tensors come one after another.
class ModelFile {
 public:
  explicit ModelFile(const Shapes& shapes) : s_(shapes) {
    Describe();
    const auto head_dim = static_cast<int64_t>(s_.hidden / s_.heads);
    const int64_t hidden = s_.hidden, ffn = s_.ffn, kv = head_dim * s_.kv_heads;
    Matrix("token_embd.weight", hidden, s_.vocab);
    Vector("output_norm.weight");
    Matrix("output.weight", hidden, s_.vocab);
    for (uint32_t i = 0; i < s_.layers; ++i) {
      const std::string layer = "blk." + std::to_string(i) + ".";
      Vector(layer + "attn_norm.weight");
      Vector(layer + "ffn_norm.weight");
      Matrix(layer + "attn_q.weight", hidden, hidden);
      Matrix(layer + "attn_k.weight", hidden, kv);
      Matrix(layer + "attn_v.weight", hidden, kv);
      Matrix(layer + "attn_output.weight", hidden, hidden);
      Matrix(layer + "ffn_gate.weight", hidden, ffn);
      Matrix(layer + "ffn_up.weight", hidden, ffn);
      Matrix(layer + "ffn_down.weight", ffn, hidden);
    }
  }

  bool Write(const char* path) {
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    const std::vector<std::byte> header = builder_.Build();
    out.write(reinterpret_cast<const char*>(header.data()), std::ssize(header));
    const std::vector<char> ones = Ones(), noise = Noise();
    uint64_t at = 0;
    for (const Part& part : parts_) {
      const std::vector<char> gap(part.offset - at, 0);
      out.write(gap.data(), std::ssize(gap));
      const std::vector<char>& from = part.is_vector ? ones : noise;
      for (uint64_t left = part.bytes; left > 0;) {
        const uint64_t piece = std::min<uint64_t>(left, from.size());
        out.write(from.data(), static_cast<std::streamsize>(piece));
        left -= piece;
      }
      at = part.offset + part.bytes;
    }
    out.close();
    return out.good();
  }

 private:
  struct Part {
    uint64_t offset, bytes;
    bool is_vector;
  };

  void Describe() {
    builder_.String("general.architecture", "llama").String("general.name", "Seeded");
    builder_.U32("llama.block_count", s_.layers).U32("llama.embedding_length", s_.hidden);
    builder_.U32("llama.feed_forward_length", s_.ffn).U32("llama.context_length", s_.context);
    builder_.U32("llama.attention.head_count", s_.heads);
    builder_.U32("llama.attention.head_count_kv", s_.kv_heads);
    builder_.F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    builder_.F32("llama.rope.freq_base", 5e5f);
    builder_.String("tokenizer.ggml.model", "gpt2").String("tokenizer.ggml.pre", "gpt-2");
    std::vector<std::string> tokens = {"<|im_end|>", "ab", "b", "\u0120"};
    std::vector<int32_t> types = {3, 1, 1, 1};
    for (const char* letter = kLetters; *letter != 0; ++letter) {
      tokens.emplace_back(1, *letter);
      types.push_back(1);
    }
    while (tokens.size() < s_.vocab) {
      tokens.push_back("t" + std::to_string(tokens.size()));
      types.push_back(1);
    }
    builder_.Strings("tokenizer.ggml.tokens", tokens).Ints("tokenizer.ggml.token_type", types);
    builder_.Strings("tokenizer.ggml.merges", {"a b"}).U32("tokenizer.ggml.eos_token_id", 0);
  }
  void Add(const std::string& name, const std::vector<int64_t>& dims, WeightType type,
           uint64_t bytes) {
    end_ = (end_ + 31) / 32 * 32;
    builder_.RawTensor(name, dims, FileNumber(type), end_);
    parts_.push_back({end_, bytes, dims.size() == 1});
    end_ += bytes;
  }
  void Vector(const std::string& name) {
    Add(name, {s_.hidden}, WeightType::kF32, uint64_t{s_.hidden} * sizeof(float));
  }
  void Matrix(const std::string& name, int64_t cols, int64_t rows) {
    Add(name, {cols, rows}, WeightType::kQ4_0,
        static_cast<uint64_t>(rows * kernels::RowBytes(WeightType::kQ4_0, cols)));
  }

  std::vector<char> Ones() const {
    const std::vector<float> ones(s_.hidden, 1.0f);
    std::vector<char> bytes(ones.size() * sizeof(float));
    std::memcpy(bytes.data(), ones.data(), bytes.size());
    return bytes;
  }
  // Blocks of Q4_0: a scale in half precision and 32 codes of 4 bits, which stand for -8 to 7 and
  // so spread by 4.6. Products of a row then keep the spread of what they multiply.
  std::vector<char> Noise() const {
    constexpr size_t kBlockBytes = 18, kBlocks = 1 << 20;
    const auto scale = testing::ToHalf(1 / (4.6f * std::sqrt(static_cast<float>(s_.hidden))));
    std::mt19937_64 rng(20);
    std::vector<char> bytes(kBlockBytes * kBlocks);
    for (size_t block = 0; block < kBlocks; ++block) {
      char* const to = bytes.data() + block * kBlockBytes;
      std::memcpy(to, &scale, sizeof(scale));
      for (size_t half = 0; half < 2; ++half) {
        const uint64_t codes = rng();
        std::memcpy(to + 2 + 8 * half, &codes, sizeof(codes));
      }
    }
    return bytes;
  }

  const Shapes s_;
  GgufBuilder builder_;
  std::vector<Part> parts_;
  uint64_t end_ = 0;
};

bool WritePrompt(const char* path, long tokens) {
  std::mt19937 rng(21);
  std::string text;
  for (long i = 0; i < tokens; ++i) {
    // Words of seven letters, because a tokenizer cuts text into words first.
    text += i % 8 == 7 ? ' ' : kLetters[rng() % (sizeof(kLetters) - 1)];
  }
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  return out.good();
}

int Run(int count, char** arguments) {
  const std::string name = count == 5 ? arguments[1] : "";
  const Shapes* const shapes = name == "8b"     ? &k8b
                               : name == "tiny" ? &kTiny
                               : name == "long" ? &kLong
                                                : nullptr;
  const long tokens = count == 5 ? std::strtol(arguments[4], nullptr, 10) : 0;
  if (shapes == nullptr || tokens < 1) {
    std::fprintf(stderr,
                 "cairn_seeded_model: expected 8b|tiny|long MODEL.gguf PROMPT.txt TOKENS, with at "
                 "least one token\n");
    return 2;
  }
  // The name may be that of somebody's own model.
  for (const char* const path : {arguments[2], arguments[3]}) {
    std::error_code unknown;
    if (!std::filesystem::exists(std::filesystem::symlink_status(path, unknown))) continue;
    std::fprintf(stderr, "cairn_seeded_model: '%s' exists; remove it, or give another name\n",
                 path);
    return 1;
  }
  for (const auto& [path, written] :
       {std::pair(arguments[2], ModelFile(*shapes).Write(arguments[2])),
        std::pair(arguments[3], WritePrompt(arguments[3], tokens))}) {
    if (written) continue;
    std::fprintf(stderr, "cairn_seeded_model: '%s' cannot be written\n", path);
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace cairn::gpu

int main(int count, char** arguments) { return cairn::gpu::Run(count, arguments); }
