#pragma once
// The KV that a model keeps of a token, layer by layer: the input of `cairn size`.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/namespace_spec.h"
#include "cairn/common/status.h"

namespace cairn::cli::size {

// How the heads of a model share keys and values.
enum class Attention : uint8_t { kMha, kGqa, kMqa, kMla };
std::string_view Name(Attention attention);  // "MHA", ...

struct LayerShape {
  // In storage order. Empty: the layer reads the KV of another layer.
  std::vector<Plane> planes;
  // It attends to this many tokens, the current one included. 0: to all.
  uint32_t window = 0;
};

// Each layer is at most what a namespace allows (MaxLayers, MaxHeads, MaxDim).
struct ModelShape {
  // As the file calls it: "llama", "deepseek_v3". Empty: the shape was given by flags.
  std::string architecture;
  Attention attention = Attention::kMha;
  // The context that the model was trained for. 0: the file does not say it.
  uint32_t context_tokens = 0;
  std::vector<LayerShape> layers;
  // An encoder-decoder model: cross-attention keeps so much of each token of the encoder's input.
  std::vector<LayerShape> cross_layers;
};

inline constexpr uint32_t kMaxLayers = 4096;
inline constexpr uint32_t kMaxHeads = 1024;
inline constexpr uint32_t kMaxDim = 65536;

// UNIMPLEMENTED if layers of this architecture are known to keep a state instead of KV, or in
// addition to it: a model_type of transformers, or an architecture of llama.cpp. `said` begins the
// error: the file, its field and what that says.
Status CheckKeepsKv(std::string_view architecture, std::string_view said);

// Planes `k` and `v` of one layer.
std::vector<Plane> KeysAndValues(uint32_t kv_heads, uint32_t k_dim, uint32_t v_dim, DType dtype);
// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): what is kept is one
// latent vector for all heads, and one key that carries the positions.
std::vector<Plane> LatentPlanes(uint32_t latent_dim, uint32_t rope_dim, DType dtype);

// By the heads of queries and of keys and values.
Attention AttentionOf(uint32_t heads, uint32_t kv_heads);

// The layout of a namespace of these layers. REQUIRES: some layer has planes.
NativeLayout LayoutOf(const std::vector<LayerShape>& layers);

// Bytes that all layers keep of one token, without headers.
uint64_t BytesOfToken(const std::vector<LayerShape>& layers);

// Bytes that an engine needs of `tokens` tokens to go on: of a layer with a window, only those of
// the window.
uint64_t BytesInUse(const std::vector<LayerShape>& layers, uint64_t tokens);

}  // namespace cairn::cli::size
