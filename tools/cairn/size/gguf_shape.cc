#include "tools/cairn/size/gguf_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cairn::cli::size {
namespace {

// How an architecture of llama.cpp lays out its KV. Those without an entry are refused: they may
// keep states of another kind (Mamba, RWKV), or share layers in a way that their keys do not say.
struct Architecture {
  std::string_view name;
  // In each `period` layers the last one attends to everything, the others to the window. 0: all
  // layers have the window that the file names, or its `sliding_window_pattern` decides.
  uint32_t period = 0;
};
constexpr Architecture kArchitectures[] = {
    {"baichuan"},   {"bitnet"},     {"chatglm"},   {"cohere2", 4}, {"command-r"},  {"deepseek"},
    {"deepseek2"},  {"exaone"},     {"falcon"},    {"gemma"},      {"gemma2", 2},  {"gemma3", 6},
    {"gemma3n", 5}, {"glm4"},       {"glm4moe"},   {"gpt-oss", 2}, {"gpt2"},       {"gptneox"},
    {"granite"},    {"granitemoe"}, {"internlm2"}, {"llama"},      {"minicpm"},    {"mistral3"},
    {"mpt"},        {"nemotron"},   {"olmo"},      {"olmo2"},      {"olmoe"},      {"orion"},
    {"phi2"},       {"phi3"},       {"qwen2"},     {"qwen2moe"},   {"qwen3"},      {"qwen3moe"},
    {"refact"},     {"smollm3"},    {"stablelm"},  {"starcoder"},  {"starcoder2"}, {"xverse"},
};

class GgufReader {
 public:
  GgufReader(const model::GgufFile& file, const Architecture& architecture, DType dtype)
      : file_(file), architecture_(architecture), dtype_(dtype) {}

  Result<ModelShape> Read() {
    ModelShape shape;
    shape.architecture = architecture_.name;
    CAIRN_ASSIGN_OR_RETURN(const uint32_t layers, Number("block_count", 1, kMaxLayers));
    CAIRN_ASSIGN_OR_RETURN(shape.context_tokens,
                           Number("context_length", 0, 1u << 30, /*fallback=*/0));
    CAIRN_RETURN_IF_ERROR(ReadHeads(layers));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<Plane> latent, ReadLatent());
    CAIRN_ASSIGN_OR_RETURN(const uint32_t shared,
                           Number("attention.shared_kv_layers", 0, layers - 1, /*fallback=*/0));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<uint32_t> windows, ReadWindows(layers));
    for (uint32_t i = 0; i < layers; ++i) {
      LayerShape layer{.planes = {}, .window = windows[i]};
      if (!latent.empty()) {
        layer.planes = latent;
      } else if (i < layers - shared && kv_heads_[i] > 0) {
        layer.planes = KeysAndValues(kv_heads_[i], k_dim_, v_dim_, dtype_);
      }
      shape.layers.push_back(std::move(layer));
    }
    if (BytesOfToken(shape.layers) == 0) {
      return Wrong("attention.head_count_kv", "0 in all layers", "a layer with KV");
    }
    shape.attention =
        !latent.empty()
            ? Attention::kMla
            : AttentionOf(heads_, *std::max_element(kv_heads_.begin(), kv_heads_.end()));
    return shape;
  }

 private:
  std::string Key(std::string_view suffix) const {
    return fmt::format("{}.{}", architecture_.name, suffix);
  }

  Status Wrong(std::string_view suffix, const std::string& found,
               const std::string& expected) const {
    return InvalidArgument("model file '{}': metadata '{}' is {}, expected {}", file_.name(),
                           Key(suffix), found, expected);
  }

  Result<uint32_t> Number(std::string_view suffix, uint32_t least, uint32_t most,
                          std::optional<uint32_t> fallback = std::nullopt) const {
    if (fallback.has_value() && !file_.Has(Key(suffix))) return *fallback;
    CAIRN_ASSIGN_OR_RETURN(const int64_t value, file_.GetInt(Key(suffix)));
    if (value < least || value > most) {
      return Wrong(suffix, std::to_string(value), fmt::format("{} to {}", least, most));
    }
    return static_cast<uint32_t>(value);
  }

  // One number for all layers, or an array with one for each.
  Result<std::vector<uint32_t>> NumberOfLayers(std::string_view suffix, uint32_t layers,
                                               uint32_t most) const {
    if (file_.GetInt(Key(suffix)).ok()) {
      CAIRN_ASSIGN_OR_RETURN(const uint32_t value, Number(suffix, 0, most));
      return std::vector<uint32_t>(layers, value);
    }
    CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> values, file_.GetIntArray(Key(suffix)));
    if (values.size() != layers) {
      return Wrong(suffix, fmt::format("an array of {}", values.size()),
                   fmt::format("a number, or one for each of the {} layers", layers));
    }
    std::vector<uint32_t> numbers;
    for (const int64_t value : values) {
      if (value < 0 || value > most) {
        return Wrong(suffix, std::to_string(value), fmt::format("0 to {}", most));
      }
      numbers.push_back(static_cast<uint32_t>(value));
    }
    return numbers;
  }

  Status ReadHeads(uint32_t layers) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<uint32_t> heads,
                           NumberOfLayers("attention.head_count", layers, kMaxHeads));
    heads_ = *std::max_element(heads.begin(), heads.end());
    if (heads_ == 0) return Wrong("attention.head_count", "0", fmt::format("1 to {}", kMaxHeads));
    if (file_.Has(Key("attention.head_count_kv"))) {
      CAIRN_ASSIGN_OR_RETURN(kv_heads_,
                             NumberOfLayers("attention.head_count_kv", layers, kMaxHeads));
    } else {
      kv_heads_ = heads;
    }
    for (uint32_t i = 0; i < layers; ++i) {
      if (kv_heads_[i] == 0 || (heads[i] > 0 && heads[i] % kv_heads_[i] == 0)) continue;
      return Wrong("attention.head_count_kv", fmt::format("{} in layer {}", kv_heads_[i], i),
                   fmt::format("a divisor of its {} query heads", heads[i]));
    }
    CAIRN_ASSIGN_OR_RETURN(const uint32_t hidden, Number("embedding_length", 1, 1u << 20));
    const uint32_t even = std::min(hidden / heads_, kMaxDim);
    CAIRN_ASSIGN_OR_RETURN(k_dim_, Number("attention.key_length", 1, kMaxDim, even));
    CAIRN_ASSIGN_OR_RETURN(v_dim_, Number("attention.value_length", 1, kMaxDim, k_dim_));
    if (k_dim_ == 0 || v_dim_ == 0) {
      return Wrong("attention.key_length", "0", "at least one dimension a head");
    }
    return OkStatus();
  }

  // Empty: no latent attention.
  Result<std::vector<Plane>> ReadLatent() const {
    if (!file_.Has(Key("attention.kv_lora_rank"))) return std::vector<Plane>();
    CAIRN_ASSIGN_OR_RETURN(const uint32_t rank, Number("attention.kv_lora_rank", 1, kMaxDim));
    CAIRN_ASSIGN_OR_RETURN(const uint32_t rope, Number("rope.dimension_count", 1, kMaxDim));
    return LatentPlanes(rank, rope, dtype_);
  }

  Result<std::vector<uint32_t>> ReadWindows(uint32_t layers) const {
    CAIRN_ASSIGN_OR_RETURN(const uint32_t window,
                           Number("attention.sliding_window", 0, 1u << 30, /*fallback=*/0));
    std::vector<uint32_t> windows(layers, window);
    if (window == 0) return windows;
    constexpr std::string_view kPattern = "attention.sliding_window_pattern";
    if (const auto flags = file_.GetBoolArray(Key(kPattern)); flags.ok()) {
      if (flags->size() != layers) {
        return Wrong(kPattern, fmt::format("an array of {}", flags->size()),
                     fmt::format("one flag for each of the {} layers", layers));
      }
      for (uint32_t i = 0; i < layers; ++i) windows[i] = (*flags)[i] ? window : 0;
      return windows;
    }
    CAIRN_ASSIGN_OR_RETURN(const uint32_t period,
                           Number(kPattern, 0, layers, architecture_.period));
    if (period == 0) return windows;
    for (uint32_t i = period - 1; i < layers; i += period) windows[i] = 0;
    return windows;
  }

  const model::GgufFile& file_;
  const Architecture& architecture_;
  const DType dtype_;
  uint32_t heads_ = 0;
  std::vector<uint32_t> kv_heads_;  // By layer.
  uint32_t k_dim_ = 0;
  uint32_t v_dim_ = 0;
};

}  // namespace

Result<ModelShape> ShapeOfGguf(const model::GgufFile& file, DType dtype) {
  CAIRN_ASSIGN_OR_RETURN(const std::string_view found, file.GetString("general.architecture"));
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == found) return GgufReader(file, architecture, dtype).Read();
  }
  CAIRN_RETURN_IF_ERROR(CheckKeepsKv(
      found, fmt::format("model file '{}': general.architecture is '{}'", file.name(), found)));
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    known += known.empty() ? "" : ", ";
    known += architecture.name;
  }
  return Errorf(StatusCode::kUnimplemented,
                "model file '{}': general.architecture is '{}', which is not known; known are {}. "
                "Give the shape with --layers, --heads, --kv-heads and --head-dim",
                file.name(), found, known);
}

}  // namespace cairn::cli::size
