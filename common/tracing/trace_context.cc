#include "common/tracing/trace_context.h"

#include <algorithm>
#include <span>

namespace cairn::tracing {
namespace {

constexpr size_t kVersion0 = 55;  // Characters.
constexpr uint8_t kSampled = 1;

// nullopt: it is no lower-case digit.
std::optional<uint8_t> Digit(char c) {
  if (c >= '0' && c <= '9') return static_cast<uint8_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<uint8_t>(c - 'a' + 10);
  return std::nullopt;
}

bool ReadHex(std::string_view digits, std::span<uint8_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const auto high = Digit(digits[2 * i]), low = Digit(digits[2 * i + 1]);
    if (!high || !low) return false;
    out[i] = static_cast<uint8_t>(*high << 4 | *low);
  }
  return true;
}

std::string HexOf(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

bool IsZero(std::span<const uint8_t> bytes) {
  return std::ranges::all_of(bytes, [](uint8_t byte) { return byte == 0; });
}

}  // namespace

std::optional<TraceContext> ParseTraceParent(std::string_view text) {
  if (text.size() < kVersion0 || text[2] != '-' || text[35] != '-' || text[52] != '-') {
    return std::nullopt;
  }
  std::array<uint8_t, 1> version, flags;
  TraceContext context;
  if (!ReadHex(text.substr(0, 2), version) || !ReadHex(text.substr(3, 32), context.trace) ||
      !ReadHex(text.substr(36, 16), context.span) || !ReadHex(text.substr(53, 2), flags)) {
    return std::nullopt;
  }
  const bool longer = text.size() > kVersion0;
  if (version[0] == 0xff || (longer && (version[0] == 0 || text[kVersion0] != '-')) ||
      IsZero(context.trace) || IsZero(context.span)) {
    return std::nullopt;
  }
  context.sampled = (flags[0] & kSampled) != 0;
  return context;
}

std::string TraceParent(const TraceContext& context) {
  return "00-" + HexOf(context.trace) + "-" + HexOf(context.span) +
         (context.sampled ? "-01" : "-00");
}

std::string Hex(const TraceId& id) { return HexOf(id); }
std::string Hex(const SpanId& id) { return HexOf(id); }

}  // namespace cairn::tracing
