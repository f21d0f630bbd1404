#include "model/model.h"

#include <absl/container/flat_hash_set.h>

#include <cmath>
#include <utility>

#include "model/gguf.h"

namespace cairn::model {
namespace {

constexpr std::string_view kArchitecture = "llama";

// Metadata of the architecture that is understood. Any other key under "llama." may change the
// result, so it is refused.
constexpr std::string_view kKnownKeys[] = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "expert_count",
    "expert_used_count",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "vocab_size",
};

std::string Key(std::string_view suffix) { return fmt::format("{}.{}", kArchitecture, suffix); }

std::string ShapeText(std::span<const int64_t> dims) {
  return fmt::format("[{}]", fmt::join(dims, ", "));
}

}  // namespace

std::vector<float> FloatsOf(const Tensor& tensor) {
  std::vector<float> floats(static_cast<size_t>(tensor.cols));
  kernels::DequantiseRow(tensor.type, tensor.row(0), floats.data(), tensor.cols);
  return floats;
}

int64_t HalfSplitRow(const Hyperparameters& hp, int64_t r) {
  const int64_t channel = r % hp.head_dim;
  if (channel >= hp.rope_dim) return r;
  const int64_t half = hp.rope_dim / 2;
  return r - channel + channel % half * 2 + channel / half;
}

// Fills a Model from a file, checking each value and tensor it takes and that nothing is left over.
class Model::Loader {
 public:
  explicit Loader(Model& model) : model_(model), file_(*model.file_), hp_(model.hp_) {}

  Status Run() {
    CAIRN_RETURN_IF_ERROR(CheckArchitecture());
    CAIRN_RETURN_IF_ERROR(CheckKeys());
    CAIRN_RETURN_IF_ERROR(ReadHyperparameters());
    CAIRN_RETURN_IF_ERROR(ReadTokenizer());
    CAIRN_RETURN_IF_ERROR(TakeTensors());
    CAIRN_RETURN_IF_ERROR(CheckLeftovers());
    ReadChatTemplate();
    ReadName();
    return OkStatus();
  }

 private:
  std::string Prefix() const { return fmt::format("model file '{}': ", file_.name()); }

  Status CheckArchitecture() const {
    CAIRN_ASSIGN_OR_RETURN(const std::string_view found, file_.GetString("general.architecture"));
    if (found == kArchitecture) return OkStatus();
    return Errorf(StatusCode::kUnimplemented,
                  "{}general.architecture is '{}', which is not supported; supported: {}", Prefix(),
                  found, kArchitecture);
  }

  Status CheckKeys() const {
    for (const std::string_view key : file_.Keys()) {
      if (!key.starts_with(Key(""))) continue;
      const std::string_view suffix = key.substr(kArchitecture.size() + 1);
      bool known = false;
      for (const std::string_view candidate : kKnownKeys) known |= candidate == suffix;
      if (known) continue;
      return Errorf(StatusCode::kUnimplemented,
                    "{}metadata '{}' is not supported: it could change the result", Prefix(), key);
    }
    if (file_.Has(Key("rope.scaling.type"))) {
      CAIRN_ASSIGN_OR_RETURN(const std::string_view type,
                             file_.GetString(Key("rope.scaling.type")));
      if (type != "none") {
        return Errorf(StatusCode::kUnimplemented,
                      "{}metadata '{}' is '{}', which is not supported; supported: none", Prefix(),
                      Key("rope.scaling.type"), type);
      }
    }
    for (const std::string_view suffix : {"expert_count", "expert_used_count"}) {
      if (!file_.Has(Key(suffix))) continue;
      CAIRN_ASSIGN_OR_RETURN(const int64_t count, file_.GetInt(Key(suffix)));
      if (count != 0) {
        return Errorf(StatusCode::kUnimplemented,
                      "{}metadata '{}' is {}: mixtures of experts are not supported", Prefix(),
                      Key(suffix), count);
      }
    }
    return OkStatus();
  }

  Status OutOfRange(std::string_view suffix, const std::string& value,
                    const std::string& expected) const {
    return InvalidArgument("{}metadata '{}' is {}, expected {}", Prefix(), Key(suffix), value,
                           expected);
  }

  Status ReadInt(std::string_view suffix, int64_t min, int64_t max, int32_t* out) const {
    CAIRN_ASSIGN_OR_RETURN(const int64_t value, file_.GetInt(Key(suffix)));
    if (value < min || value > max) {
      return OutOfRange(suffix, std::to_string(value), fmt::format("{} to {}", min, max));
    }
    *out = static_cast<int32_t>(value);
    return OkStatus();
  }

  Status ReadIntOr(std::string_view suffix, int64_t min, int64_t max, int32_t otherwise,
                   int32_t* out) const {
    *out = otherwise;
    return file_.Has(Key(suffix)) ? ReadInt(suffix, min, max, out) : OkStatus();
  }

  Status ReadHyperparameters() {
    constexpr int64_t kMaxWidth = 1 << 20;
    CAIRN_RETURN_IF_ERROR(ReadInt("block_count", 1, 1024, &hp_.layers));
    CAIRN_RETURN_IF_ERROR(ReadInt("embedding_length", 1, kMaxWidth, &hp_.hidden));
    CAIRN_RETURN_IF_ERROR(ReadInt("feed_forward_length", 1, kMaxWidth, &hp_.ffn));
    CAIRN_RETURN_IF_ERROR(ReadInt("context_length", 1, 1 << 24, &hp_.context));
    return ReadAttention();
  }

  Status ReadAttention() {
    constexpr int64_t kMaxHeads = 1024, kMaxHeadDim = 4096;
    CAIRN_RETURN_IF_ERROR(ReadInt("attention.head_count", 1, kMaxHeads, &hp_.heads));
    CAIRN_RETURN_IF_ERROR(
        ReadIntOr("attention.head_count_kv", 1, hp_.heads, hp_.heads, &hp_.kv_heads));
    if (hp_.heads % hp_.kv_heads != 0) {
      return OutOfRange("attention.head_count_kv", std::to_string(hp_.kv_heads),
                        fmt::format("a divisor of the {} query heads", hp_.heads));
    }
    if (!file_.Has(Key("attention.key_length")) && hp_.hidden % hp_.heads != 0) {
      return OutOfRange("attention.head_count", std::to_string(hp_.heads),
                        fmt::format("a divisor of the width {}", hp_.hidden));
    }
    CAIRN_RETURN_IF_ERROR(
        ReadIntOr("attention.key_length", 1, kMaxHeadDim, hp_.hidden / hp_.heads, &hp_.head_dim));
    int32_t value_dim = 0;
    CAIRN_RETURN_IF_ERROR(
        ReadIntOr("attention.value_length", 1, kMaxHeadDim, hp_.head_dim, &value_dim));
    if (value_dim != hp_.head_dim) {
      return OutOfRange("attention.value_length", std::to_string(value_dim),
                        fmt::format("{}, the length of the keys", hp_.head_dim));
    }
    CAIRN_RETURN_IF_ERROR(
        ReadIntOr("rope.dimension_count", 2, hp_.head_dim, hp_.head_dim, &hp_.rope_dim));
    if (hp_.rope_dim % 2 != 0) {
      return OutOfRange("rope.dimension_count", std::to_string(hp_.rope_dim), "an even number");
    }
    return ReadFloats();
  }

  Status ReadFloats() {
    double rope_base = 10000.0;
    if (file_.Has(Key("rope.freq_base"))) {
      CAIRN_ASSIGN_OR_RETURN(rope_base, file_.GetFloat(Key("rope.freq_base")));
    }
    if (!(rope_base >= 1.0 && rope_base <= 1e12)) {
      return OutOfRange("rope.freq_base", std::to_string(rope_base), "1 to 1e12");
    }
    CAIRN_ASSIGN_OR_RETURN(const double eps,
                           file_.GetFloat(Key("attention.layer_norm_rms_epsilon")));
    if (!(eps >= 0.0 && eps <= 1.0)) {
      return OutOfRange("attention.layer_norm_rms_epsilon", std::to_string(eps), "0 to 1");
    }
    hp_.rope_base = static_cast<float>(rope_base);
    hp_.rms_eps = static_cast<float>(eps);
    return OkStatus();
  }

  Status ReadTokenizer() {
    CAIRN_ASSIGN_OR_RETURN(model_.tokenizer_, Tokenizer::FromGguf(file_));
    const int32_t tokens = model_.tokenizer_->vocab_size();
    CAIRN_RETURN_IF_ERROR(ReadIntOr("vocab_size", 1, int64_t{1} << 30, tokens, &hp_.vocab));
    if (hp_.vocab == tokens) return OkStatus();
    return OutOfRange("vocab_size", std::to_string(hp_.vocab),
                      fmt::format("{}, the length of tokenizer.ggml.tokens", tokens));
  }

  // dims innermost first, as in the file.
  Status Take(const std::string& name, std::vector<int64_t> dims, Tensor* out) {
    const GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) {
      return InvalidArgument("{}tensor '{}' of shape {} is missing", Prefix(), name,
                             ShapeText(dims));
    }
    if (tensor->dims != dims) {
      return InvalidArgument(
          "{}tensor '{}' has shape {}, expected {} from the file's {}.* metadata", Prefix(), name,
          ShapeText(tensor->dims), ShapeText(dims), kArchitecture);
    }
    taken_.insert(tensor->name);
    out->name = name;
    out->type = tensor->type;
    out->cols = dims[0];
    out->rows = dims.size() == 2 ? dims[1] : 1;
    out->data = tensor->data;
    return OkStatus();
  }

  Status TakeNorm(const std::string& name, Tensor* out) {
    CAIRN_RETURN_IF_ERROR(Take(name, {hp_.hidden}, out));
    if (out->type == kernels::WeightType::kF32) return OkStatus();
    return Errorf(StatusCode::kUnimplemented, "{}tensor '{}' has type {}, expected F32 for a norm",
                  Prefix(), name, kernels::Name(out->type));
  }

  Status TakeTensors() {
    CAIRN_RETURN_IF_ERROR(
        Take("token_embd.weight", {hp_.hidden, hp_.vocab}, &model_.token_embedding_));
    CAIRN_RETURN_IF_ERROR(TakeNorm("output_norm.weight", &model_.output_norm_));
    if (file_.FindTensor("output.weight") != nullptr) {
      CAIRN_RETURN_IF_ERROR(Take("output.weight", {hp_.hidden, hp_.vocab}, &model_.output_));
    } else {
      model_.output_ = model_.token_embedding_;
    }
    model_.layers_.resize(static_cast<size_t>(hp_.layers));
    for (int32_t i = 0; i < hp_.layers; ++i) CAIRN_RETURN_IF_ERROR(TakeLayer(i));
    return OkStatus();
  }

  Status TakeLayer(int32_t i) {
    LayerWeights& layer = model_.layers_[static_cast<size_t>(i)];
    const auto name = [i](std::string_view part) {
      return fmt::format("blk.{}.{}.weight", i, part);
    };
    const int64_t hidden = hp_.hidden, ffn = hp_.ffn;
    const int64_t q = int64_t{hp_.heads} * hp_.head_dim;
    const int64_t kv = int64_t{hp_.kv_heads} * hp_.head_dim;
    CAIRN_RETURN_IF_ERROR(TakeNorm(name("attn_norm"), &layer.attn_norm));
    CAIRN_RETURN_IF_ERROR(Take(name("attn_q"), {hidden, q}, &layer.q));
    CAIRN_RETURN_IF_ERROR(Take(name("attn_k"), {hidden, kv}, &layer.k));
    CAIRN_RETURN_IF_ERROR(Take(name("attn_v"), {hidden, kv}, &layer.v));
    CAIRN_RETURN_IF_ERROR(Take(name("attn_output"), {q, hidden}, &layer.o));
    CAIRN_RETURN_IF_ERROR(TakeNorm(name("ffn_norm"), &layer.ffn_norm));
    CAIRN_RETURN_IF_ERROR(Take(name("ffn_gate"), {hidden, ffn}, &layer.gate));
    CAIRN_RETURN_IF_ERROR(Take(name("ffn_up"), {hidden, ffn}, &layer.up));
    return Take(name("ffn_down"), {ffn, hidden}, &layer.down);
  }

  // Biases, RoPE factors, further layers: whatever was not taken would be ignored, and the answer
  // wrong.
  Status CheckLeftovers() const {
    for (const GgufTensor& tensor : file_.tensors()) {
      if (taken_.contains(tensor.name)) continue;
      return Errorf(
          StatusCode::kUnimplemented,
          "{}tensor '{}' of type {} and shape {} is not part of a supported {} model of {} layers",
          Prefix(), tensor.name, kernels::Name(tensor.type), ShapeText(tensor.dims), kArchitecture,
          hp_.layers);
    }
    return OkStatus();
  }

  void ReadChatTemplate() {
    const Result<std::string_view> program = file_.GetString("tokenizer.chat_template");
    if (!program.ok()) {
      // Callers of an API see it: it does not name the file.
      model_.chat_template_status_ =
          Errorf(StatusCode::kUnimplemented,
                 "the model has no chat template (tokenizer.chat_template). Text can be given as "
                 "it is, without a template: {}",
                 kRawText);
      return;
    }
    auto parsed = ChatTemplate::FromJinja(*program);
    if (parsed.ok()) {
      model_.chat_template_ = std::move(*parsed);
    } else {
      model_.chat_template_status_ = parsed.status();
    }
  }

  void ReadName() {
    const Result<std::string_view> name = file_.GetString("general.name");
    model_.name_ = name.ok() && !name->empty()
                       ? std::string(*name)
                       : file_.name().substr(file_.name().find_last_of('/') + 1);
  }

  Model& model_;
  const GgufFile& file_;
  Hyperparameters& hp_;
  absl::flat_hash_set<std::string_view> taken_;
};

Model::~Model() = default;

Result<std::unique_ptr<Model>> Model::Load(const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  return FromFile(std::move(file));
}

Result<std::unique_ptr<Model>> Model::Parse(std::span<const std::byte> bytes, std::string name) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, GgufFile::Parse(bytes, std::move(name)));
  return FromFile(std::move(file));
}

Result<std::unique_ptr<Model>> Model::FromFile(std::unique_ptr<GgufFile> file) {
  std::unique_ptr<Model> model(new Model());
  model->file_ = std::move(file);
  CAIRN_RETURN_IF_ERROR(Loader(*model).Run());
  return model;
}

Result<const ChatTemplate*> Model::chat_template() const {
  if (chat_template_ == nullptr) return chat_template_status_;
  return chat_template_.get();
}

Digest Model::weights_digest() const {
  std::call_once(digest_once_, [this] { digest_ = Sha256().Update(file_->bytes()).Finish(); });
  return digest_;
}

}  // namespace cairn::model
