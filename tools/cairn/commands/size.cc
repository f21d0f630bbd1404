#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>

#include "common/recipe/recipe.h"
#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/flags.h"
#include "tools/cairn/commands/report_error.h"
#include "tools/cairn/size/config_shape.h"
#include "tools/cairn/size/gguf_shape.h"
#include "tools/cairn/size/model_shape.h"
#include "tools/cairn/size/report.h"

namespace cairn::cli {
namespace {

// Far more than any config.json has.
constexpr uintmax_t kMostConfigBytes = 4 << 20;

std::optional<DType> TypeOf(const std::string& name) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF8E4M3, DType::kI8}) {
    if (Name(dtype) == name) return dtype;
  }
  return std::nullopt;  // Empty: the file's own.
}

// A folder whose model is a GGUF file has no config.json.
Status NoConfig(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() == ".gguf") files.push_back(it->path().filename().string());
  }
  if (files.empty()) return Errorf(StatusCode::kNotFound, "{}: has no config.json", folder);
  return Errorf(StatusCode::kNotFound, "{}: has no config.json; give the GGUF file itself: {}",
                folder, *std::min_element(files.begin(), files.end()));
}

// "meta-llama/Llama-3.1-8B"
bool LooksLikeANameOfAHub(const std::string& path) {
  return std::count(path.begin(), path.end(), '/') == 1 && path.front() != '/' &&
         path.front() != '.' && path.back() != '/' && !path.ends_with(".gguf") &&
         !path.ends_with(".json");
}

Result<size::ModelShape> FromFile(const SizeFlags& flags) {
  std::string path = flags.model;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    path += "/config.json";
    if (!std::filesystem::exists(path, error)) return NoConfig(flags.model);
  } else if (!std::filesystem::exists(path, error) && LooksLikeANameOfAHub(path)) {
    return Errorf(StatusCode::kNotFound,
                  "{}: No such file or directory, and names of a hub are not fetched; give the "
                  "GGUF file, the config.json or the folder on this machine",
                  path);
  }
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  std::ifstream in(path, std::ios::binary);
  if (error || !in) {
    return Errorf(StatusCode::kNotFound, "{}: cannot be read: {}", path,
                  error ? error.message() : std::generic_category().message(errno));
  }
  if (bytes == 0) {
    return InvalidArgument("{}: is empty, expected a GGUF file or a config.json", path);
  }
  char magic[4] = {};
  in.read(magic, sizeof(magic));
  // A file that is called so is judged as one, whatever it begins with.
  if (std::string_view(magic, sizeof(magic)) == "GGUF" || path.ends_with(".gguf")) {
    CAIRN_ASSIGN_OR_RETURN(const auto file, model::GgufFile::OpenMetadata(path));
    return size::ShapeOfGguf(*file, TypeOf(flags.dtype).value_or(DType::kF16));
  }
  if (bytes > kMostConfigBytes) {
    return InvalidArgument("{}: has {} bytes, expected a GGUF file, or a config.json of at most {}",
                           path, bytes, kMostConfigBytes);
  }
  in.clear();  // Clears the end that a file of less than four bytes has.
  in.seekg(0);
  std::ostringstream text;
  text << in.rdbuf();
  return size::ShapeOfConfig(text.str(), path, TypeOf(flags.dtype));
}

Result<size::ModelShape> FromFlags(const SizeFlags& flags) {
  const auto missing = [](const char* flag) {
    return InvalidArgument("give a model file, or the shape: {} is missing", flag);
  };
  if (flags.layers == 0) return missing("--layers");
  const DType dtype = TypeOf(flags.dtype).value_or(DType::kF16);
  size::ModelShape shape;
  std::vector<Plane> planes;
  if (flags.latent_dim > 0) {
    if (flags.rope_dim == 0) return missing("--rope-dim");
    shape.attention = size::Attention::kMla;
    planes = size::LatentPlanes(flags.latent_dim, flags.rope_dim, dtype);
  } else {
    const uint32_t kv_heads = flags.kv_heads > 0 ? flags.kv_heads : flags.heads;
    if (kv_heads == 0) return missing("--heads (or --kv-heads, or --latent-dim of MLA)");
    if (flags.head_dim == 0) return missing("--head-dim");
    if (flags.heads % kv_heads != 0) {
      return InvalidArgument("--kv-heads: got {}, expected a divisor of the {} of --heads",
                             kv_heads, flags.heads);
    }
    shape.attention = size::AttentionOf(flags.heads > 0 ? flags.heads : kv_heads, kv_heads);
    planes = size::KeysAndValues(kv_heads, flags.head_dim,
                                 flags.v_head_dim > 0 ? flags.v_head_dim : flags.head_dim, dtype);
  }
  if (flags.shared_layers >= flags.layers) {
    return InvalidArgument("--shared-layers: got {}, expected fewer than the {} layers",
                           flags.shared_layers, flags.layers);
  }
  if (flags.window_layers.value_or(0) > flags.layers) {
    return InvalidArgument("--window-layers: got {}, expected at most the {} layers",
                           *flags.window_layers, flags.layers);
  }
  const uint32_t sliding =
      flags.window == 0 ? 0 : flags.window_layers.value_or(flags.layers - flags.shared_layers);
  for (uint32_t i = 0; i < flags.layers; ++i) {
    size::LayerShape layer{.planes = {}, .window = i < sliding ? flags.window : 0};
    if (i < flags.layers - flags.shared_layers) layer.planes = planes;
    shape.layers.push_back(std::move(layer));
  }
  return shape;
}

void AddSizeShape(CLI::App& c, SizeFlags& o) {
  const auto number = [&](const char* flag, uint32_t& value, uint32_t most, const char* help) {
    return c.add_option(flag, value, help)->check(CLI::Range(1u, most));
  };
  CLI::Option* const layers =
      number("--layers", o.layers, size::kMaxLayers, "Without MODEL: number of layers");
  number("--heads", o.heads, size::kMaxHeads, "Query heads of a layer")->needs(layers);
  number("--kv-heads", o.kv_heads, size::kMaxHeads, "KV heads of a layer; default: --heads")
      ->needs(layers);
  CLI::Option* const dim =
      number("--head-dim", o.head_dim, size::kMaxDim, "Numbers of a key")->needs(layers);
  number("--v-head-dim", o.v_head_dim, size::kMaxDim, "Numbers of a value; default: --head-dim")
      ->needs(layers);
  CLI::Option* const latent = number("--latent-dim", o.latent_dim, size::kMaxDim,
                                     "Instead of heads: numbers of the latent vector of MLA")
                                  ->needs(layers)
                                  ->excludes(dim);
  number("--rope-dim", o.rope_dim, size::kMaxDim, "With --latent-dim: numbers of its rotary key")
      ->needs(latent);
  number("--shared-layers", o.shared_layers, size::kMaxLayers,
         "How many last layers read the KV of others")
      ->needs(layers);
  CLI::Option* const window =
      number("--window", o.window, 1u << 30, "Tokens that sliding layers attend to")->needs(layers);
  c.add_option("--window-layers", o.window_layers, "How many layers slide; default: all")
      ->check(CLI::Range(0u, size::kMaxLayers))
      ->needs(window);
}

}  // namespace

void AddSize(CLI::App& app, SizeFlags& o) {
  CLI::App& c = *app.add_subcommand("size", "Says what the KV of a model takes in a node");
  c.add_option("model,--model", o.model,
               "GGUF file, config.json of transformers, or the folder with one");
  AddSizeShape(c, o);
  c.add_option("--dtype", o.dtype,
               "Type of the KV: f16, bf16, f32, f8e4m3, i8; default: the file's")
      ->check(CLI::IsMember({"f16", "bf16", "f32", "f8e4m3", "i8"}));
  c.add_option("--block-tokens", o.block_tokens, "Tokens of a block")
      ->check(CLI::IsMember({16u, 32u, 64u, 128u, 256u}))
      ->capture_default_str();
  c.add_option("--recipe", o.recipes,
               "How KV is stored, as in the worker's setting cache.recipe; may be given several "
               "times")
      ->capture_default_str();
  c.add_option("--context", o.context_tokens,
               "Tokens of a context; default: the model's own, or 8192 if none is known")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40));
  c.add_option("--ram", o.ram, "Also say how much fits into a host tier, such as 16GiB");
  c.add_option("--disk", o.disk, "Also say how much fits into a disk tier, such as 1TiB");
  AddJson(c, o.json, "Print one JSON object");
  c.footer(
      "Examples:\n"
      "  cairn size --model m.gguf --recipe raw --recipe int8 --ram 16GiB\n"
      "  cairn size Llama-3.1-8B/config.json --context 131072\n"
      "  cairn size --layers 61 --latent-dim 512 --rope-dim 64 --dtype bf16 --recipe raw --json");
}

int RunSize(const SizeFlags& flags) {
  const bool has_shape = flags.layers > 0;
  if (!flags.model.empty() && has_shape) {
    return FailUsage("size: give a model file or --layers, not both");
  }
  for (const std::string& recipe : flags.recipes) {
    const Status grammar = ParseRecipe(recipe).status();
    if (recipe.empty()) return FailUsage("size: --recipe: got '', expected one such as int8");
    if (!grammar.ok()) {
      return FailUsage(fmt::format("size: --recipe {}: {}", recipe, Message(grammar)));
    }
  }
  auto shape = flags.model.empty() ? FromFlags(flags) : FromFile(flags);
  if (!shape.ok()) {
    return flags.model.empty() ? FailUsage("size: " + Message(shape.status()))
                               : Fail(shape.status());
  }
  size::Question question{.block_tokens = flags.block_tokens,
                          .recipes = flags.recipes,
                          .context_tokens = flags.context_tokens};
  for (const auto& [flag, text, bytes] :
       {std::tuple("--ram", &flags.ram, &question.host_bytes),
        std::tuple("--disk", &flags.disk, &question.disk_bytes)}) {
    if (text->empty()) continue;
    const Result<uint64_t> parsed = ParseSize(flag, *text);
    if (!parsed.ok()) return FailUsage("size: " + Message(parsed.status()));
    if (*parsed == 0) {
      return FailUsage(
          fmt::format("{}: got '{}', expected a size above 0, such as 16GiB", flag, *text));
    }
    *bytes = *parsed;
  }
  const size::Report report = size::MakeReport(*std::move(shape), std::move(question));
  if (flags.json) {
    std::printf("%s\n", Dump(size::ToJson(report)).c_str());
  } else {
    std::printf("%s", size::ToText(report, Terminal::Detect(stdout)).c_str());
  }
  return report.AllRefused() ? kExitFailure : kExitOk;
}

}  // namespace cairn::cli
