#include "common/tracing/tracer.h"

#include <cstring>

namespace cairn::tracing {
namespace {

// SplitMix64: distinct ids from distinct states, each state once.
constexpr uint64_t kStep = 0x9e3779b97f4a7c15;

uint64_t Mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

Tracer::Tracer(double sample, uint64_t seed, std::function<void(Span)> end)
    : sample_(sample), random_(seed), end_(std::move(end)) {}

uint64_t Tracer::Random() {
  for (;;) {
    const uint64_t number = Mixed(random_.fetch_add(kStep, std::memory_order_relaxed));
    if (number != 0) return number;  // An id of zeros is none.
  }
}

std::optional<Place> Tracer::Begin(std::string_view trace, bool entry) {
  Place place;
  if (const auto caller = ParseTraceParent(trace)) {
    if (!caller->sampled) return std::nullopt;
    place.own = *caller;
    place.parent = caller->span;
  } else {
    if (!trace.empty() || !entry) return std::nullopt;
    // The upper 53 bits are a number from 0 to 1.
    const bool chosen = static_cast<double>(Random() >> 11) * 0x1p-53 < sample_;
    if (!chosen) return std::nullopt;
    const uint64_t halves[] = {Random(), Random()};
    std::memcpy(place.own.trace.data(), halves, sizeof(halves));
    place.own.sampled = true;
  }
  SetSpan(&place);
  return place;
}

Place Tracer::Below(const Place& place) {
  Place below = {.own = place.own, .parent = place.own.span};
  SetSpan(&below);
  return below;
}

void Tracer::SetSpan(Place* place) {
  const uint64_t id = Random();
  std::memcpy(place->own.span.data(), &id, sizeof(id));
}

}  // namespace cairn::tracing
