#pragma once
// Begins and ends spans. Code that has none to report to holds a nullptr.

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cairn/common/clock.h"
#include "common/tracing/trace_context.h"

namespace cairn::tracing {

// As OTLP numbers them.
enum class SpanKind : uint8_t { kInternal = 1, kServer = 2, kClient = 3 };

// The place of a span that has begun.
struct Place {
  TraceContext own;
  SpanId parent = {};  // Zeros: none.

  // The trace id of calls that it makes: their spans are below it.
  std::string text() const { return TraceParent(own); }
};

// Numbers and truths stay what they are, so that a collector can compare and add them up.
using AttributeValue = std::variant<std::string, int64_t, double, bool>;
using Attributes = std::vector<std::pair<std::string, AttributeValue>>;

struct Span {
  Place place;
  SpanKind kind = SpanKind::kInternal;
  std::string name;
  TimePoint begin, end;  // As the steady clock tells.
  Attributes attributes = {};
  std::string error = {};  // Empty: it went well.
};

// Thread-safe.
class Tracer {
 public:
  // `sample`: this share of the requests whose callers say nothing of traces gets one, 0 to 1.
  // `seed`: for ids, another one in each process. `end`: gets each span, on the thread that ends
  // it, and must not block.
  Tracer(double sample, uint64_t seed, std::function<void(Span)> end);

  // The place of a span for a call with this trace id. nullopt: no span is wanted. `entry`: a call
  // without a trace id may be the first of a trace.
  std::optional<Place> Begin(std::string_view trace, bool entry);
  // A place below another one.
  Place Below(const Place& place);
  void End(Span span) { end_(std::move(span)); }

 private:
  uint64_t Random();
  // Gives it a new span id.
  void SetSpan(Place* place);

  const double sample_;
  std::atomic<uint64_t> random_;
  const std::function<void(Span)> end_;
};

}  // namespace cairn::tracing
