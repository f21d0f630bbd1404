#include "tools/cairn/output/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace cairn::cli {

std::string HumanBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  // 1023.5 would be printed as 1024: it is one of the next unit.
  while (value >= 1023.5 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, kUnits[unit]);
}

std::string HumanSeconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  if (seconds < 0.0995) {
    const double ms = seconds * 1000;
    return ms < 9.95 ? fmt::format("{:.1f} ms", ms) : fmt::format("{:.0f} ms", ms);
  }
  if (seconds < 100) return fmt::format("{:.2f} s", seconds);
  const auto whole = static_cast<uint64_t>(std::llround(seconds));
  return fmt::format("{} min {} s", whole / 60, whole % 60);
}

std::string Grouped(uint64_t n) {
  const std::string digits = std::to_string(n);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out.push_back(',');
    out.push_back(digits[i]);
  }
  return out;
}

std::string Times(double ratio) {
  if (!std::isfinite(ratio) || ratio <= 0) return "-";
  return ratio < 99.95 ? fmt::format("{:.1f}x", ratio) : fmt::format("{:.0f}x", ratio);
}

std::string Bar(double value, double full, int width, const Terminal& terminal) {
  if (!(value > 0) || !(full > 0) || width <= 0) return "";
  const double share = std::min(value / full, 1.0);
  if (!terminal.unicode) {
    const int cells = std::max(1, static_cast<int>(std::lround(share * width)));
    return std::string(static_cast<size_t>(cells), '#');
  }
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = std::max(1, static_cast<int>(std::lround(share * width * 8)));
  std::string out;
  for (int i = 0; i < eighths / 8; ++i) out += "█";
  out += kEighths[eighths % 8];
  return out;
}

}  // namespace cairn::cli
