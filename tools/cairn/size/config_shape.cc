#include "tools/cairn/size/config_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <span>

#include "tools/cairn/output/json.h"

namespace cairn::cli::size {
namespace {

// How a family of models says what it keeps.
enum class Family : uint8_t {
  kHeads,       // Planes k and v of `num_key_value_heads`.
  kMultiQuery,  // One head of k and v, if the flag `multi_query` says so (it does unless false).
  kLatent,      // Multi-head latent attention.
  kEncoderDecoder,  // Self-attention of the decoder, and cross-attention.
};
struct ModelType {
  std::string_view name;
  Family family = Family::kHeads;
  // Without `layer_types` in the file: of each `period` layers the last one attends to everything,
  // the others to the window. 0: all layers have the window that the file names.
  uint32_t period = 0;
};
constexpr ModelType kModelTypes[] = {
    {"bart", Family::kEncoderDecoder},
    {"cohere"},
    {"cohere2", Family::kHeads, 4},
    {"deepseek_v2", Family::kLatent},
    {"deepseek_v3", Family::kLatent},
    {"falcon", Family::kMultiQuery},
    {"gemma"},
    {"gemma2", Family::kHeads, 2},
    {"gemma3_text", Family::kHeads, 6},
    {"gemma3n_text", Family::kHeads, 5},
    {"glm"},
    {"glm4"},
    {"glm4_moe"},
    {"gpt2"},
    {"gpt_bigcode", Family::kMultiQuery},
    {"gpt_neox"},
    {"gpt_oss", Family::kHeads, 2},
    {"gptj"},
    {"granite"},
    {"granitemoe"},
    {"kimi_k2", Family::kLatent},
    {"llama"},
    {"minicpm3", Family::kLatent},
    {"mistral"},
    {"mixtral"},
    {"mpt"},
    {"mt5", Family::kEncoderDecoder},
    {"nemotron"},
    {"olmo"},
    {"olmo2"},
    {"olmoe"},
    {"opt"},
    {"phi"},
    {"phi3"},
    {"phimoe"},
    {"qwen2"},
    {"qwen2_moe"},
    {"qwen3"},
    {"qwen3_moe"},
    {"smollm3"},
    {"stablelm"},
    {"starcoder2"},
    {"t5", Family::kEncoderDecoder},
    {"whisper", Family::kEncoderDecoder},
};

std::optional<DType> TypeNamed(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  if (name == "float16") return DType::kF16;
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float32") return DType::kF32;
  return std::nullopt;
}

// Text of the file in messages: not too much of it, and no walk into what is nested.
std::string Quoted(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  std::string text = Dump(value);
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

bool Is(const Json& value, std::string_view text) {
  const auto* const found = value.get_ptr<const Json::string_t*>();
  return found != nullptr && *found == text;
}

class ConfigReader {
 public:
  ConfigReader(const Json& config, const std::string& name, const ModelType& type, DType dtype)
      : config_(config), name_(name), type_(type), dtype_(dtype) {}

  Result<ModelShape> Read() {
    ModelShape shape;
    shape.architecture = type_.name;
    CAIRN_ASSIGN_OR_RETURN(shape.context_tokens, Number({"max_position_embeddings", "n_positions",
                                                         "max_seq_len", "max_target_positions"},
                                                        0, 1u << 30, /*fallback=*/0));
    switch (type_.family) {
      case Family::kLatent:
        CAIRN_RETURN_IF_ERROR(ReadLatent(&shape));
        break;
      case Family::kEncoderDecoder:
        CAIRN_RETURN_IF_ERROR(ReadEncoderDecoder(&shape));
        break;
      case Family::kHeads:
      case Family::kMultiQuery:
        CAIRN_RETURN_IF_ERROR(ReadHeads(&shape));
        break;
    }
    return shape;
  }

 private:
  using Names = std::initializer_list<const char*>;

  // The first of the fields that the file has; null values count as missing.
  const Json* Find(Names names, const char** found = nullptr) const {
    for (const char* name : names) {
      const auto it = config_.find(name);
      if (it == config_.end() || it->is_null()) continue;
      if (found != nullptr) *found = name;
      return &*it;
    }
    return nullptr;
  }

  Status Wrong(std::string_view field, const std::string& found,
               const std::string& expected) const {
    return InvalidArgument("{}: field '{}' is {}, expected {}", name_, field, found, expected);
  }

  Result<uint32_t> Number(Names names, uint32_t least, uint32_t most,
                          std::optional<uint32_t> fallback = std::nullopt) const {
    const char* field = *names.begin();
    const Json* value = Find(names, &field);
    if (value == nullptr) {
      if (fallback.has_value()) return *fallback;
      return InvalidArgument("{}: field '{}' is missing", name_, field);
    }
    const std::string expected = fmt::format("a whole number, {} to {}", least, most);
    if (!value->is_number_integer()) return Wrong(field, Quoted(*value), expected);
    if (value->is_number_unsigned() ? value->get<uint64_t>() > most
                                    : value->get<int64_t>() > int64_t{most}) {
      return Wrong(field, Quoted(*value), expected);
    }
    const auto number = value->get<int64_t>();
    if (number < int64_t{least}) return Wrong(field, Quoted(*value), expected);
    return static_cast<uint32_t>(number);
  }

  Result<bool> Flag(const char* field, bool fallback) const {
    const Json* value = Find({field});
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) return Wrong(field, Quoted(*value), "true or false");
    return value->get<bool>();
  }

  Result<uint32_t> Layers() const {
    return Number({"num_hidden_layers", "n_layer", "n_layers", "num_layers"}, 1, kMaxLayers);
  }
  Result<uint32_t> Heads() const {
    return Number({"num_attention_heads", "n_head", "n_heads", "num_heads"}, 1, kMaxHeads);
  }

  Status ReadHeads(ModelShape* shape) const {
    CAIRN_ASSIGN_OR_RETURN(const uint32_t layers, Layers());
    CAIRN_ASSIGN_OR_RETURN(const uint32_t heads, Heads());
    CAIRN_ASSIGN_OR_RETURN(const uint32_t kv_heads, KvHeads(heads));
    CAIRN_ASSIGN_OR_RETURN(const uint32_t dim, HeadDim(heads));
    CAIRN_ASSIGN_OR_RETURN(const uint32_t shared,
                           Number({"num_kv_shared_layers"}, 0, layers - 1, /*fallback=*/0));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<uint32_t> windows, Windows(layers));
    for (uint32_t i = 0; i < layers; ++i) {
      LayerShape layer{.planes = {}, .window = windows[i]};
      if (i < layers - shared) layer.planes = KeysAndValues(kv_heads, dim, dim, dtype_);
      shape->layers.push_back(std::move(layer));
    }
    shape->attention = AttentionOf(heads, kv_heads);
    return OkStatus();
  }

  Result<uint32_t> KvHeads(uint32_t heads) const {
    if (type_.family == Family::kMultiQuery) {
      // Falcon's older files have the flag, and num_kv_heads that does not count.
      CAIRN_ASSIGN_OR_RETURN(const bool newer, Flag("new_decoder_architecture", false));
      CAIRN_ASSIGN_OR_RETURN(const bool multi_query, Flag("multi_query", true));
      if (!newer) return multi_query ? 1 : heads;
    }
    const Names names = {"num_key_value_heads", "num_kv_heads", "n_head_kv"};
    CAIRN_ASSIGN_OR_RETURN(const uint32_t kv_heads, Number(names, 1, heads, heads));
    if (heads % kv_heads != 0) {
      const char* field = *names.begin();
      Find(names, &field);
      return Wrong(field, std::to_string(kv_heads),
                   fmt::format("a divisor of the {} query heads", heads));
    }
    return kv_heads;
  }

  Result<uint32_t> HeadDim(uint32_t heads) const {
    if (Find({"head_dim"}) != nullptr) return Number({"head_dim"}, 1, kMaxDim);
    CAIRN_ASSIGN_OR_RETURN(const uint32_t hidden,
                           Number({"hidden_size", "n_embd", "d_model"}, 1, 1u << 20));
    if (hidden % heads != 0 || hidden / heads > kMaxDim) {
      return Wrong("hidden_size", std::to_string(hidden),
                   fmt::format("a multiple of the {} heads, as the file has no 'head_dim'", heads));
    }
    return hidden / heads;
  }

  Status ReadLatent(ModelShape* shape) const {
    CAIRN_ASSIGN_OR_RETURN(const uint32_t layers, Layers());
    CAIRN_ASSIGN_OR_RETURN(const uint32_t rank, Number({"kv_lora_rank"}, 1, kMaxDim));
    CAIRN_ASSIGN_OR_RETURN(const uint32_t rope, Number({"qk_rope_head_dim"}, 1, kMaxDim));
    shape->attention = Attention::kMla;
    shape->layers.assign(layers, {.planes = LatentPlanes(rank, rope, dtype_), .window = 0});
    return OkStatus();
  }

  Status ReadEncoderDecoder(ModelShape* shape) const {
    CAIRN_ASSIGN_OR_RETURN(
        const uint32_t layers,
        Number({"num_decoder_layers", "decoder_layers", "num_layers"}, 1, kMaxLayers));
    CAIRN_ASSIGN_OR_RETURN(const uint32_t heads,
                           Number({"decoder_attention_heads", "num_heads"}, 1, kMaxHeads));
    uint32_t dim = 0;
    if (Find({"d_kv"}) != nullptr) {
      CAIRN_ASSIGN_OR_RETURN(dim, Number({"d_kv"}, 1, kMaxDim));
    } else {
      CAIRN_ASSIGN_OR_RETURN(dim, HeadDim(heads));
    }
    shape->attention = Attention::kMha;
    shape->layers.assign(layers, {.planes = KeysAndValues(heads, dim, dim, dtype_), .window = 0});
    shape->cross_layers = shape->layers;
    return OkStatus();
  }

  // The window of each layer; 0: it attends to everything.
  Result<std::vector<uint32_t>> Windows(uint32_t layers) const {
    std::vector<uint32_t> windows(layers, 0);
    CAIRN_ASSIGN_OR_RETURN(const uint32_t window,
                           Number({"sliding_window"}, 0, 1u << 30, /*fallback=*/0));
    if (const Json* types = Find({"layer_types"}); types != nullptr) {
      return WindowsOfTypes(*types, window, std::move(windows));
    }
    CAIRN_ASSIGN_OR_RETURN(const bool used, Flag("use_sliding_window", true));
    if (window == 0 || !used) return windows;
    // Qwen: the layers below do not slide.
    CAIRN_ASSIGN_OR_RETURN(const uint32_t first,
                           Number({"max_window_layers"}, 0, kMaxLayers, /*fallback=*/0));
    CAIRN_ASSIGN_OR_RETURN(const uint32_t period, Number({"sliding_window_pattern"}, 0, kMaxLayers,
                                                         /*fallback=*/type_.period));
    for (uint32_t i = std::min(first, layers); i < layers; ++i) {
      windows[i] = period != 0 && (i + 1) % period == 0 ? 0 : window;
    }
    return windows;
  }

  Result<std::vector<uint32_t>> WindowsOfTypes(const Json& types, uint32_t window,
                                               std::vector<uint32_t> windows) const {
    if (!types.is_array() || types.size() != windows.size()) {
      return Wrong("layer_types", Quoted(types),
                   fmt::format("one word for each of the {} layers", windows.size()));
    }
    for (size_t i = 0; i < windows.size(); ++i) {
      if (Is(types[i], "full_attention")) continue;
      if (!Is(types[i], "sliding_attention")) {
        return Errorf(StatusCode::kUnimplemented,
                      "{}: layer {} has the type {}, which is not known; known are "
                      "full_attention and sliding_attention",
                      name_, i, Quoted(types[i]));
      }
      if (window == 0) return Wrong("sliding_window", "missing", "the window of the layers");
      windows[i] = window;
    }
    return windows;
  }

  const Json& config_;
  const std::string& name_;
  const ModelType& type_;
  const DType dtype_;
};

Result<const ModelType*> TypeOf(const Json& config, const std::string& name) {
  const auto found = config.find("model_type");
  if (found == config.end()) return InvalidArgument("{}: field 'model_type' is missing", name);
  for (const ModelType& type : kModelTypes) {
    if (Is(*found, type.name)) return &type;
  }
  const std::string asked = found->is_string() ? found->get<std::string>() : "";
  CAIRN_RETURN_IF_ERROR(
      CheckKeepsKv(asked, fmt::format("{}: field 'model_type' is {}", name, Quoted(*found))));
  for (const ModelType& type : kModelTypes) {
    if (type.name != asked + "_text") continue;
    return Errorf(StatusCode::kUnimplemented,
                  "{}: field 'model_type' is {}, a model of text and pictures; expected an object "
                  "'text_config' with the 'model_type' \"{}\" in it",
                  name, Quoted(*found), type.name);
  }
  std::string known;
  for (const ModelType& type : kModelTypes) {
    known += known.empty() ? "" : ", ";
    known += type.name;
  }
  return Errorf(StatusCode::kUnimplemented,
                "{}: field 'model_type' is {}, which is not known; known are {}. Give the shape "
                "with --layers, --heads, --kv-heads and --head-dim",
                name, Quoted(*found), known);
}

Result<DType> DTypeOf(const Json& config, const std::string& name) {
  for (const char* field : {"dtype", "torch_dtype"}) {
    const auto found = config.find(field);
    if (found == config.end() || found->is_null()) continue;
    if (found->is_string()) {
      if (const auto dtype = TypeNamed(found->get<std::string>()); dtype.has_value()) return *dtype;
    }
    return InvalidArgument(
        "{}: field '{}' is {}, expected \"float16\", \"bfloat16\" or \"float32\"; --dtype "
        "overrides it",
        name, field, Quoted(*found));
  }
  return DType::kF16;
}

}  // namespace

Result<ModelShape> ShapeOfConfig(std::string_view text, const std::string& name,
                                 std::optional<DType> dtype) {
  const Json config = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (config.is_discarded()) {
    return InvalidArgument("{}: is no JSON, expected a GGUF file or a config.json", name);
  }
  if (!config.is_object()) {
    return InvalidArgument("{}: is {}, expected a JSON object", name, Quoted(config));
  }
  // Models of text and pictures have the language model's fields one level below.
  const auto inner = config.find("text_config");
  const bool nested = inner != config.end() && inner->is_object() && inner->contains("model_type");
  const Json& model = nested ? *inner : config;
  CAIRN_ASSIGN_OR_RETURN(const ModelType* type, TypeOf(model, name));
  if (!dtype.has_value()) {
    CAIRN_ASSIGN_OR_RETURN(const DType own, DTypeOf(model, name));
    dtype = own;
    if (nested && !model.contains("dtype") && !model.contains("torch_dtype")) {
      CAIRN_ASSIGN_OR_RETURN(dtype, DTypeOf(config, name));
    }
  }
  return ConfigReader(model, name, *type, *dtype).Read();
}

}  // namespace cairn::cli::size
