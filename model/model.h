#pragma once
// A Llama-family model: hyper-parameters, weights as they lie in the GGUF file, tokenizer, chat
// template.
//
// Everything is checked at load: every tensor the architecture needs is there with the right shape,
// and nothing is there that would be ignored (an unknown tensor, bias or RoPE factor changes the
// result, so it is an error that names it). Immutable after Load, thread-safe. Tensors point into
// the mapped file and live as long as the Model.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cairn/common/hash.h"
#include "cairn/common/status.h"
#include "cairn/kernels/weight_types.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"

namespace cairn::model {

class GgufFile;

// y = W x with W of [rows][cols]: rows outputs, cols inputs; a row's numbers are contiguous, rows
// follow each other without gaps (kernels::RowBytes(type, cols) bytes each). A vector (norm
// weights) has rows = 1.
struct Tensor {
  std::string name;
  kernels::WeightType type = kernels::WeightType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  std::span<const std::byte> data;

  int64_t row_bytes() const { return kernels::RowBytes(type, cols); }
  const std::byte* row(int64_t r) const { return data.data() + r * row_bytes(); }
};

// The numbers of a tensor with one row, such as the weights of a norm.
std::vector<float> FloatsOf(const Tensor& tensor);

struct Hyperparameters {
  int32_t layers = 0;
  int32_t hidden = 0;    // Width of the residual stream.
  int32_t ffn = 0;       // Width of the feed-forward part.
  int32_t heads = 0;     // Query heads.
  int32_t kv_heads = 0;  // Divides heads. Query head h attends to KV head h / (heads / kv_heads).
  int32_t head_dim = 0;
  int32_t rope_dim = 0;  // The first rope_dim channels of a head are rotated; even, <= head_dim.
  int32_t context = 0;   // Positions the model was trained for.
  int32_t vocab = 0;
  // Channel pair p turns by position * rope_base^(-2p / rope_dim). Files of this architecture store
  // the rows of q and k so that pair p is channels (2p, 2p + 1): see HalfSplitRow.
  float rope_base = 10000.0f;
  float rms_eps = 1e-5f;
};

// Row in the file's q or k tensor that holds row r of the same tensor in half-split order, where
// pair p of a head is channels (p, p + rope_dim / 2): the order in which Cairn stores keys. Scores
// do not depend on the order as long as q and k agree.
int64_t HalfSplitRow(const Hyperparameters& hp, int64_t r);

struct LayerWeights {
  Tensor attn_norm;  // [1][hidden]
  Tensor q;          // [heads * head_dim][hidden], rows in the file's order.
  Tensor k;          // [kv_heads * head_dim][hidden], rows in the file's order.
  Tensor v;          // [kv_heads * head_dim][hidden]
  Tensor o;          // [hidden][heads * head_dim]
  Tensor ffn_norm;   // [1][hidden]
  Tensor gate;       // [ffn][hidden]
  Tensor up;         // [ffn][hidden]
  Tensor down;       // [hidden][ffn]
};

class Model {
 public:
  // The errors of GgufFile::Open and Tokenizer::FromGguf. UNIMPLEMENTED names an architecture,
  // tensor or option that is not supported. INVALID_ARGUMENT names the tensor or key, the value and
  // what was expected.
  static Result<std::unique_ptr<Model>> Load(const std::string& path);
  // The same for bytes in memory, which the caller keeps alive.
  static Result<std::unique_ptr<Model>> Parse(std::span<const std::byte> bytes, std::string name);
  ~Model();

  const Hyperparameters& hp() const { return hp_; }
  // REQUIRES: 0 <= i < hp().layers.
  const LayerWeights& layer(int i) const { return layers_[static_cast<size_t>(i)]; }
  const Tensor& token_embedding() const { return token_embedding_; }  // [vocab][hidden]
  const Tensor& output_norm() const { return output_norm_; }          // [1][hidden]
  // [vocab][hidden]; the token embedding when the file has no output tensor (tied).
  const Tensor& output() const { return output_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // NOT_FOUND: the file declares no template. UNIMPLEMENTED: it declares one that is not supported.
  Result<const ChatTemplate*> chat_template() const;
  // general.name, or the file's name without directory.
  const std::string& name() const { return name_; }
  // SHA-256 of the whole file. Computed at the first call (about 0.1 s per 100 MB), then
  // remembered.
  Digest weights_digest() const;

 private:
  class Loader;
  Model() = default;
  static Result<std::unique_ptr<Model>> FromFile(std::unique_ptr<GgufFile> file);

  std::unique_ptr<GgufFile> file_;
  std::string name_;
  Hyperparameters hp_;
  std::vector<LayerWeights> layers_;
  Tensor token_embedding_;
  Tensor output_norm_;
  Tensor output_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<const ChatTemplate> chat_template_;
  Status chat_template_status_;
  mutable std::once_flag digest_once_;
  mutable Digest digest_;
};

}  // namespace cairn::model
