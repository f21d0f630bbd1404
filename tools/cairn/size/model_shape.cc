#include "tools/cairn/size/model_shape.h"

#include <algorithm>

namespace cairn::cli::size {
namespace {

struct StateModel {
  std::string_view architecture;
  std::string_view layers;
};
constexpr std::string_view kMamba = "Mamba", kLinear = "linear attention",
                           kConvolution = "convolutions", kRecurrent = "recurrent layers";
constexpr StateModel kStateModels[] = {
    // transformers
    {"bamba", kMamba},
    {"falcon_h1", kMamba},
    {"falcon_mamba", kMamba},
    {"granitemoehybrid", kMamba},
    {"jamba", kMamba},
    {"kimi_linear", kLinear},
    {"lfm2", kConvolution},
    {"lfm2_moe", kConvolution},
    {"mamba", kMamba},
    {"mamba2", kMamba},
    {"minimax", kLinear},
    {"nemotron_h", kMamba},
    {"qwen3_next", kLinear},
    {"recurrent_gemma", kRecurrent},
    {"rwkv", kLinear},
    {"xlstm", kRecurrent},
    {"zamba", kMamba},
    {"zamba2", kMamba},
    // llama.cpp, where it has another name
    {"arwkv7", kLinear},
    {"falcon-h1", kMamba},
    {"granitehybrid", kMamba},
    {"kimi-linear", kLinear},
    {"lfm2moe", kConvolution},
    {"plamo2", kMamba},
    {"qwen3next", kLinear},
    {"rwkv6", kLinear},
    {"rwkv6qwen2", kLinear},
    {"rwkv7", kLinear},
};

uint64_t BytesOfLayer(const LayerShape& layer) {
  uint64_t bytes = 0;
  for (const Plane& plane : layer.planes) {
    bytes += uint64_t{plane.heads} * plane.dim * DTypeBytes(plane.dtype);
  }
  return bytes;
}

}  // namespace

Status CheckKeepsKv(std::string_view architecture, std::string_view said) {
  for (const StateModel& model : kStateModels) {
    if (model.architecture != architecture) continue;
    return Errorf(StatusCode::kUnimplemented,
                  "{}: such a model has layers of {}, which keep a state instead of KV, and a node "
                  "stores no states of them",
                  said, model.layers);
  }
  return OkStatus();
}

std::string_view Name(Attention attention) {
  switch (attention) {
    case Attention::kMha:
      return "MHA";
    case Attention::kGqa:
      return "GQA";
    case Attention::kMqa:
      return "MQA";
    case Attention::kMla:
      return "MLA";
  }
  return "unknown";
}

std::vector<Plane> KeysAndValues(uint32_t kv_heads, uint32_t k_dim, uint32_t v_dim, DType dtype) {
  return {{"k", kv_heads, k_dim, dtype}, {"v", kv_heads, v_dim, dtype}};
}

std::vector<Plane> LatentPlanes(uint32_t latent_dim, uint32_t rope_dim, DType dtype) {
  return {{"latent", 1, latent_dim, dtype}, {"k_rope", 1, rope_dim, dtype}};
}

Attention AttentionOf(uint32_t heads, uint32_t kv_heads) {
  if (kv_heads == heads) return Attention::kMha;
  return kv_heads == 1 ? Attention::kMqa : Attention::kGqa;
}

NativeLayout LayoutOf(const std::vector<LayerShape>& layers) {
  NativeLayout layout;
  for (const LayerShape& layer : layers) {
    for (const Plane& plane : layer.planes) {
      layout.kv_heads = std::max(layout.kv_heads, plane.heads);
    }
    layout.Append({1, layer.planes});
  }
  return layout;
}

uint64_t BytesOfToken(const std::vector<LayerShape>& layers) {
  uint64_t bytes = 0;
  for (const LayerShape& layer : layers) bytes += BytesOfLayer(layer);
  return bytes;
}

uint64_t BytesInUse(const std::vector<LayerShape>& layers, uint64_t tokens) {
  uint64_t bytes = 0;
  for (const LayerShape& layer : layers) {
    const uint64_t kept = layer.window == 0 ? tokens : std::min<uint64_t>(layer.window, tokens);
    bytes += kept * BytesOfLayer(layer);
  }
  return bytes;
}

}  // namespace cairn::cli::size
