#include <array>
#include <charconv>
#include <cmath>

#include "common/config/config.h"

namespace cairn::config {
namespace {

struct Unit {
  std::string_view name;
  double scale;
};

// Splits "1.5GiB" into number and unit; false when there is no number.
bool Split(std::string_view text, double* number, std::string_view* unit) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  if (error != std::errc() || !std::isfinite(*number) || *number < 0) return false;
  *unit = text.substr(static_cast<size_t>(end - text.data()));
  while (!unit->empty() && unit->front() == ' ') unit->remove_prefix(1);
  return true;
}

constexpr std::array<Unit, 10> kByteUnits = {{{"", 1},
                                              {"B", 1},
                                              {"KiB", 1024.0},
                                              {"MiB", 1048576.0},
                                              {"GiB", 1073741824.0},
                                              {"TiB", 1099511627776.0},
                                              {"KB", 1e3},
                                              {"MB", 1e6},
                                              {"GB", 1e9},
                                              {"TB", 1e12}}};
constexpr std::array<Unit, 7> kTimeUnits = {
    {{"d", 86400e9}, {"h", 3600e9}, {"m", 60e9}, {"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"ns", 1}}};

}  // namespace

Result<uint64_t> ParseBytes(std::string_view text) {
  // A whole number without a unit is exact beyond 2^53.
  uint64_t whole = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), whole);
  if (error == std::errc() && end == text.data() + text.size()) return whole;
  double number = 0;
  std::string_view unit;
  if (Split(text, &number, &unit)) {
    for (const Unit& candidate : kByteUnits) {
      if (candidate.name != unit) continue;
      const double bytes = number * candidate.scale;
      if (bytes >= 9.2e18) break;
      if (bytes != std::floor(bytes)) break;  // Half a byte is a typing error.
      return static_cast<uint64_t>(bytes);
    }
  }
  return InvalidArgument("got '{}', expected a size such as 512MiB", text);
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr std::array<std::string_view, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < kNames.size()) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{}{}", bytes, kNames[unit]);
}

std::string FormatBytesUp(uint64_t bytes) {
  uint64_t unit = 1;
  while (bytes / unit >= uint64_t{1} << 20) unit <<= 10;
  return FormatBytes((bytes + unit - 1) / unit * unit);
}

Result<Duration> ParseDuration(std::string_view text) {
  double number = 0;
  std::string_view unit;
  if (Split(text, &number, &unit)) {
    if (number == 0 && unit.empty()) return Duration(0);
    for (const Unit& candidate : kTimeUnits) {
      if (candidate.name != unit) continue;
      const double ns = number * candidate.scale;
      if (ns >= 9.2e18) break;
      return Duration(static_cast<int64_t>(std::llround(ns)));
    }
  }
  return InvalidArgument("got '{}', expected a time such as 250ms, 1s, 5m or 2d", text);
}

std::string FormatDuration(Duration duration) {
  const int64_t ns = duration.count();
  if (ns == 0) return "0s";
  static constexpr std::array<int64_t, 7> kScales = {
      86'400'000'000'000, 3'600'000'000'000, 60'000'000'000, 1'000'000'000, 1'000'000, 1'000, 1};
  for (size_t i = 0; i < kScales.size(); ++i) {
    if (ns % kScales[i] == 0) return fmt::format("{}{}", ns / kScales[i], kTimeUnits[i].name);
  }
  return fmt::format("{}ns", ns);
}

std::string Nearest(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = name.size() / 2 + 1;  // Half of the letters wrong: another word.
  for (const std::string& candidate : candidates) {
    std::vector<size_t> row(candidate.size() + 1);
    for (size_t j = 0; j <= candidate.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= name.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= candidate.size(); ++j) {
        const size_t substituted = diagonal + (name[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

}  // namespace cairn::config
