#pragma once
// A place in a trace, and its text: the header `traceparent` of W3C's Trace Context, level 1.
//
//   00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//   version, trace, span, flags (bit 0: sampled)

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn::tracing {

using TraceId = std::array<uint8_t, 16>;
using SpanId = std::array<uint8_t, 8>;

struct TraceContext {
  TraceId trace = {};
  SpanId span = {};
  bool sampled = false;  // Somebody wants its spans.

  bool operator==(const TraceContext&) const = default;
};

// nullopt: the text has another form, or an id of zeros. Texts of later versions are read as those
// of version 0 are.
std::optional<TraceContext> ParseTraceParent(std::string_view text);
std::string TraceParent(const TraceContext& context);

// Lower-case hexadecimal digits.
std::string Hex(const TraceId& id);
std::string Hex(const SpanId& id);

}  // namespace cairn::tracing
