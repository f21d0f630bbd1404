#include "common/recipe/selection_text.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace cairn {
namespace {

using selections::ParameterInfo;
using selections::ParameterKind;
using selections::SelectionInfo;

// More digits than any parameter has; values stay far from the ends of int64_t.
constexpr size_t kMaxDigits = 12;

std::string Names() {
  std::string out;
  for (const SelectionInfo& info : selections::AllSelections()) {
    out += out.empty() ? "" : ", ";
    out += info.name;
    for (const selections::Preset& preset : info.presets) {
      out += ", ";
      out += preset.name;
    }
  }
  return out;
}

// The value of a parameter that a recipe does not give: the preset's, else the selection's.
std::optional<int64_t> Fallback(const selections::Preset* preset, const ParameterInfo& p) {
  if (preset != nullptr) {
    for (const selections::Preset::Value& v : preset->values) {
      if (v.parameter == p.name) return v.value;
    }
  }
  return p.fallback;
}

// 400 with three decimals: "0.4".
std::string Decimal(int64_t units, int decimals) {
  std::string digits = std::to_string(units);
  const auto places = static_cast<size_t>(decimals);
  if (digits.size() <= places) digits.insert(0, places + 1 - digits.size(), '0');
  std::string whole = digits.substr(0, digits.size() - places);
  std::string fraction = digits.substr(digits.size() - places);
  while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
  return fraction.empty() ? whole : whole + "." + fraction;
}

constexpr size_t kCalibrationDigits = 16;

std::string Text(int64_t value, const ParameterInfo& p) {
  if (p.kind == ParameterKind::kCalibration) {
    return fmt::format("{:016x}", static_cast<uint64_t>(value));
  }
  return Decimal(value, p.decimals);
}

std::string Range(const ParameterInfo& p) {
  if (p.kind == ParameterKind::kCalibration) {
    return fmt::format("the first {} hexadecimal digits of a calibration file's SHA-256",
                       kCalibrationDigits);
  }
  std::string out = Decimal(p.least, p.decimals) + " to " + Decimal(p.most, p.decimals);
  if (p.decimals > 0) out += fmt::format(" with at most {} decimals", p.decimals);
  return out;
}

std::string Parameters(const SelectionInfo& info) {
  std::string out;
  for (const ParameterInfo& p : info.parameters) {
    out += out.empty() ? "" : "; ";
    const bool number = p.kind == ParameterKind::kDecimal;
    out += std::string(p.name) + (number ? " from " : ": ") + Range(p);
  }
  return out;
}

bool AllDigits(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Digits, then perhaps a point and more digits. nullopt for anything else, and out of range.
std::optional<int64_t> Units(std::string_view text, const ParameterInfo& p) {
  const size_t point = text.find('.');
  const std::string_view whole = text.substr(0, point);
  std::string_view fraction;
  if (point != std::string_view::npos) {
    fraction = text.substr(point + 1);
    if (fraction.empty()) return std::nullopt;
  }
  const auto places = static_cast<size_t>(p.decimals);
  if (whole.empty() || whole.size() + places > kMaxDigits || fraction.size() > places ||
      !AllDigits(whole) || !AllDigits(fraction)) {
    return std::nullopt;
  }
  std::string digits(whole);
  digits += fraction;
  digits.append(places - fraction.size(), '0');
  int64_t units = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), units);
  if (units < p.least || units > p.most) return std::nullopt;
  return units;
}

// Exactly the digits, in lower case: one calibration has one canonical form.
std::optional<int64_t> Calibration(std::string_view text) {
  if (text.size() != kCalibrationDigits ||
      text.find_first_not_of("0123456789abcdef") != std::string_view::npos) {
    return std::nullopt;
  }
  uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return static_cast<int64_t>(value);
}

std::optional<int64_t> Value(std::string_view text, const ParameterInfo& p) {
  return p.kind == ParameterKind::kCalibration ? Calibration(text) : Units(text, p);
}

}  // namespace

std::string RecipeSelection::Canonical() const {
  std::string out(info->name);
  char before = ':';
  for (size_t i = 0; i < values.size(); ++i) {
    const ParameterInfo& p = info->parameters[i];
    out += before;
    out += fmt::format("{}={}", p.name, Text(values[i], p));
    before = ',';
  }
  return out;
}

Result<RecipeSelection> ParseSelection(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  RecipeSelection selection;
  const selections::PresetOfSelection preset = selections::FindPreset(name);
  selection.info = preset.selection != nullptr ? preset.selection : selections::FindSelection(name);
  if (selection.info == nullptr) {
    return InvalidArgument("selection: got '{}', expected one of {}", name, Names());
  }
  const auto& parameters = selection.info->parameters;
  std::vector<std::optional<int64_t>> given(parameters.size());
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  for (bool more = colon != std::string_view::npos; more;) {
    const size_t comma = rest.find(',');
    const std::string_view pair = rest.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
    const size_t equals = pair.find('=');
    const std::string_view key = pair.substr(0, equals);
    const auto at = std::find_if(parameters.begin(), parameters.end(),
                                 [&](const ParameterInfo& p) { return p.name == key; });
    if (at == parameters.end()) {
      return InvalidArgument("selection '{}': got parameter '{}', expected one of: {}", name, key,
                             Parameters(*selection.info));
    }
    auto& slot = given[static_cast<size_t>(at - parameters.begin())];
    if (slot) return InvalidArgument("selection '{}': parameter '{}' is given twice", name, key);
    const std::string_view number =
        equals == std::string_view::npos ? std::string_view() : pair.substr(equals + 1);
    slot = Value(number, *at);
    if (!slot) {
      return InvalidArgument("selection '{}', parameter '{}': got '{}', expected {}", name, key,
                             number, Range(*at));
    }
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::optional<int64_t> value =
        given[i] ? given[i] : Fallback(preset.preset, parameters[i]);
    if (!value) {
      return InvalidArgument("selection '{}': parameter '{}' is missing, expected {}", name,
                             parameters[i].name, Range(parameters[i]));
    }
    selection.values.push_back(*value);
  }
  return selection;
}

}  // namespace cairn
