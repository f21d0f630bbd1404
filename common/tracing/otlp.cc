#include "common/tracing/otlp.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace cairn::tracing {
namespace {

using Json = nlohmann::json;

constexpr int kStatusError = 2;

// OTLP's JSON has 64-bit numbers as texts.
struct ValueOf {
  Json operator()(const std::string& text) const { return {{"stringValue", text}}; }
  Json operator()(int64_t number) const { return {{"intValue", std::to_string(number)}}; }
  // JSON has neither infinities nor NaN; protobuf's mapping writes them as texts.
  Json operator()(double number) const {
    if (std::isnan(number)) return {{"doubleValue", "NaN"}};
    if (std::isinf(number)) return {{"doubleValue", number > 0 ? "Infinity" : "-Infinity"}};
    return {{"doubleValue", number}};
  }
  Json operator()(bool truth) const { return {{"boolValue", truth}}; }
};

Json Attribute(const std::string& key, const AttributeValue& value) {
  return {{"key", key}, {"value", std::visit(ValueOf(), value)}};
}

std::string Nanoseconds(TimePoint time, int64_t unix_minus_steady) {
  return std::to_string(time.time_since_epoch().count() + unix_minus_steady);
}

Json ToJson(const Span& span, int64_t unix_minus_steady) {
  Json json = {{"traceId", Hex(span.place.own.trace)},
               {"spanId", Hex(span.place.own.span)},
               {"name", span.name},
               {"kind", static_cast<int>(span.kind)},
               {"startTimeUnixNano", Nanoseconds(span.begin, unix_minus_steady)},
               {"endTimeUnixNano", Nanoseconds(span.end, unix_minus_steady)}};
  if (span.place.parent != SpanId{}) json["parentSpanId"] = Hex(span.place.parent);
  for (const auto& [key, value] : span.attributes) {
    json["attributes"].push_back(Attribute(key, value));
  }
  if (!span.error.empty()) json["status"] = {{"code", kStatusError}, {"message", span.error}};
  return json;
}

}  // namespace

std::string ToOtlp(const Resource& resource, std::span<const Span> spans,
                   int64_t unix_minus_steady) {
  Json list = Json::array();
  for (const Span& span : spans) list.push_back(ToJson(span, unix_minus_steady));
  const Json attributes = {Attribute("service.name", resource.service),
                           Attribute("service.instance.id", resource.instance),
                           Attribute("service.version", resource.version)};
  const Json scope = {{"scope", {{"name", "cairn"}}}, {"spans", std::move(list)}};
  const Json request = {
      {"resourceSpans", {{{"resource", {{"attributes", attributes}}}, {"scopeSpans", {scope}}}}}};
  return request.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace cairn::tracing
