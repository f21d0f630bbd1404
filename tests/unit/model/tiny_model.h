#pragma once
// A complete, loadable model of a few kilobytes, and the same with parts changed or left out.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/model/gguf_builder.h"

namespace cairn::model::testing {

// Vocabulary "a" "b" "Ġ" "ab" <|im_start|> <|im_end|>; 1 layer, width 64, 2 query heads on 1 KV
// head.
struct TinyModel {
  std::string architecture = "llama";
  std::string tokenizer_model = "gpt2";
  std::string pre = "gpt-2";
  std::vector<std::string> tokens = {"a", "b", "Ġ", "ab", "<|im_start|>", "<|im_end|>"};
  std::vector<int32_t> token_types = {1, 1, 1, 1, 3, 3};
  std::vector<std::string> merges = {"a b"};
  uint32_t kv_heads = 1;
  uint32_t layers = 1;
  int64_t ffn_tensor_rows = 96;
  std::string leave_out;                    // Name of a tensor.
  std::function<void(GgufBuilder&)> extra;  // Adds keys and tensors.

  GgufBuilder Builder() const {
    GgufBuilder b;
    b.String("general.architecture", architecture).String("general.name", "Tiny");
    b.U32("llama.block_count", layers).U32("llama.embedding_length", 64);
    b.U32("llama.feed_forward_length", 96).U32("llama.context_length", 128);
    b.U32("llama.attention.head_count", 2).U32("llama.attention.head_count_kv", kv_heads);
    b.F32("llama.attention.layer_norm_rms_epsilon", 1e-5f).F32("llama.rope.freq_base", 1e4f);
    b.String("tokenizer.ggml.model", tokenizer_model).String("tokenizer.ggml.pre", pre);
    b.Strings("tokenizer.ggml.tokens", tokens).Ints("tokenizer.ggml.token_type", token_types);
    b.Strings("tokenizer.ggml.merges", merges).U32("tokenizer.ggml.eos_token_id", 5);
    using kernels::WeightType;
    const auto add = [&](const std::string& name, const std::vector<int64_t>& dims,
                         WeightType type) {
      if (name != leave_out) b.Tensor(name, dims, type, 0x11);
    };
    const auto vocab = static_cast<int64_t>(tokens.size());
    add("token_embd.weight", {64, vocab}, WeightType::kQ8_0);
    add("output_norm.weight", {64}, WeightType::kF32);
    add("blk.0.attn_norm.weight", {64}, WeightType::kF32);
    add("blk.0.attn_q.weight", {64, 64}, WeightType::kQ4_1);
    add("blk.0.attn_k.weight", {64, 32}, WeightType::kQ4_0);
    add("blk.0.attn_v.weight", {64, 32}, WeightType::kF16);
    add("blk.0.attn_output.weight", {64, 64}, WeightType::kQ5_0);
    add("blk.0.ffn_norm.weight", {64}, WeightType::kF32);
    add("blk.0.ffn_gate.weight", {64, ffn_tensor_rows}, WeightType::kQ5_1);
    add("blk.0.ffn_up.weight", {64, 96}, WeightType::kBF16);
    add("blk.0.ffn_down.weight", {96, 64}, WeightType::kQ8_0);
    if (extra) extra(b);
    return b;
  }
  std::vector<std::byte> Build() const { return Builder().Build(); }
};

}  // namespace cairn::model::testing
