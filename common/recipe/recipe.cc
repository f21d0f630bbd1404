#include "common/recipe/recipe.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

namespace cairn {
namespace {

using codecs::CodecInfo;
using codecs::ParameterInfo;

std::optional<TierKind> TierOf(std::string_view name) {
  for (const TierKind tier : kTiersByRank) {
    if (Name(tier) == name) return tier;
  }
  return std::nullopt;
}

std::vector<std::string_view> Split(std::string_view text, char by) {
  std::vector<std::string_view> out;
  for (;;) {
    const size_t at = text.find(by);
    out.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return out;
    text.remove_prefix(at + 1);
  }
}

std::string CodecNames() {
  std::string out;
  for (const CodecInfo& info : codecs::AllCodecs()) {
    out += out.empty() ? "" : ", ";
    out += info.name;
  }
  return out;
}

std::string Values(const ParameterInfo& parameter) {
  std::string out;
  for (const int64_t value : parameter.allowed) {
    out += out.empty() ? "" : ", ";
    out += std::to_string(value);
  }
  return out;
}

std::string Parameters(const CodecInfo& info) {
  if (info.parameters.empty()) return "none";
  std::string out;
  for (const ParameterInfo& parameter : info.parameters) {
    out += out.empty() ? "" : "; ";
    out += parameter.name;
    out += " in {" + Values(parameter) + "}";
  }
  return out;
}

Result<RecipeCodec> ParseCodec(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  RecipeCodec codec;
  codec.info = codecs::FindCodec(name);
  if (codec.info == nullptr) {
    if (selections::FindSelection(name) != nullptr ||
        selections::FindPreset(name).preset != nullptr) {
      return InvalidArgument(
          "codec: got the selection '{}', expected '{}:...+CODEC', CODEC one of {}", name, name,
          CodecNames());
    }
    return InvalidArgument("codec: got '{}', expected one of {}", name, CodecNames());
  }
  const auto& parameters = codec.info->parameters;
  std::vector<std::optional<int64_t>> given(parameters.size());
  if (colon != std::string_view::npos) {
    for (const std::string_view pair : Split(text.substr(colon + 1), ',')) {
      const size_t equals = pair.find('=');
      const std::string_view key = pair.substr(0, equals);
      const auto at = std::find_if(parameters.begin(), parameters.end(),
                                   [&](const ParameterInfo& p) { return p.name == key; });
      if (at == parameters.end()) {
        return InvalidArgument("codec '{}': got parameter '{}', expected one of: {}", name, key,
                               Parameters(*codec.info));
      }
      auto& slot = given[static_cast<size_t>(at - parameters.begin())];
      if (slot) return InvalidArgument("codec '{}': parameter '{}' is given twice", name, key);
      const std::string_view digits =
          equals == std::string_view::npos ? std::string_view() : pair.substr(equals + 1);
      int64_t value = 0;
      const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value);
      if (digits.empty() || parsed.ec != std::errc() ||
          parsed.ptr != digits.data() + digits.size() ||
          std::find(at->allowed.begin(), at->allowed.end(), value) == at->allowed.end()) {
        return InvalidArgument("codec '{}', parameter '{}': got '{}', expected one of {}", name,
                               key, digits, Values(*at));
      }
      slot = value;
    }
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int same_as = parameters[i].same_as;
    const int64_t fallback =
        same_as >= 0 ? codec.values[static_cast<size_t>(same_as)] : parameters[i].fallback;
    codec.values.push_back(given[i].value_or(fallback));
  }
  return codec;
}

}  // namespace

std::string RecipeCodec::Canonical() const {
  std::string out(info->name);
  char before = ':';
  for (size_t i = 0; i < values.size(); ++i) {
    const ParameterInfo& parameter = info->parameters[i];
    if (parameter.same_as >= 0 && values[i] == values[static_cast<size_t>(parameter.same_as)]) {
      continue;
    }
    out += before;
    out += parameter.name;
    out += '=';
    out += std::to_string(values[i]);
    before = ',';
  }
  return out;
}

std::string Recipe::Canonical() const {
  std::string out;
  if (selection) out = selection->Canonical() + "+";
  for (const RecipeRung& rung : rungs) {
    if (&rung != &rungs.front()) out += '>';
    if (rung.tier) {
      out += Name(*rung.tier);
      out += '=';
    }
    out += rung.codec.Canonical();
  }
  return out;
}

bool Recipe::Lossy() const {
  return selection.has_value() ||
         std::any_of(rungs.begin(), rungs.end(),
                     [](const RecipeRung& rung) { return rung.codec.info->lossy; });
}

const RecipeCodec& Recipe::CodecOf(TierKind tier) const {
  const RecipeRung* best = &rungs.front();
  for (const RecipeRung& rung : rungs) {
    if (!rung.tier || !Faster(tier, *rung.tier)) best = &rung;
  }
  return best->codec;
}

Result<Recipe> ParseRecipe(std::string_view text) {
  if (text.empty()) {
    return InvalidArgument("got an empty recipe, expected a codec: {}", CodecNames());
  }
  Recipe recipe;
  if (const size_t plus = text.find('+'); plus != std::string_view::npos) {
    if (text.find('>') != std::string_view::npos) {
      return Errorf(StatusCode::kUnimplemented,
                    "recipe '{}': got a selection of tokens and a ladder, expected one of them: "
                    "selected blocks are not encoded again when they move to disk",
                    text);
    }
    CAIRN_ASSIGN_OR_RETURN(recipe.selection, ParseSelection(text.substr(0, plus)));
    text.remove_prefix(plus + 1);
  }
  const std::vector<std::string_view> parts = Split(text, '>');
  for (const std::string_view part : parts) {
    // "host=int8:group=64": an equals sign before any colon names a tier.
    const size_t equals = part.find('=');
    const bool has_tier = equals != std::string_view::npos && equals < part.find(':');
    RecipeRung rung;
    if (has_tier) {
      const auto tier = TierOf(part.substr(0, equals));
      if (!tier) {
        return InvalidArgument("tier: got '{}', expected device, host or disk",
                               part.substr(0, equals));
      }
      rung.tier = *tier;
    }
    if (has_tier && parts.size() == 1) {
      return InvalidArgument(
          "ladder '{}': got one rung, expected two or more rungs, or only a codec", text);
    }
    if (!has_tier && parts.size() > 1) {
      return InvalidArgument("ladder: got rung '{}', expected TIER=CODEC, as in {}", part,
                             "host=int8>disk=turbo:bits=4");
    }
    if (!recipe.rungs.empty() && !Faster(*recipe.rungs.back().tier, *rung.tier)) {
      return InvalidArgument("ladder: got '{}' below '{}', expected the order device, host, disk",
                             Name(*rung.tier), Name(*recipe.rungs.back().tier));
    }
    CAIRN_ASSIGN_OR_RETURN(rung.codec, ParseCodec(has_tier ? part.substr(equals + 1) : part));
    recipe.rungs.push_back(std::move(rung));
  }
  return recipe;
}

Result<std::string> CanonicalRecipe(std::string_view text) {
  CAIRN_ASSIGN_OR_RETURN(const Recipe recipe, ParseRecipe(text));
  return recipe.Canonical();
}

}  // namespace cairn
