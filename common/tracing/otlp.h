#pragma once
// Spans as the JSON of OTLP 1.x: the message ExportTraceServiceRequest in protobuf's JSON mapping,
// with ids in hexadecimal digits, as the OTLP specification ("JSON Protobuf Encoding") asks for.

#include <cstdint>
#include <span>
#include <string>

#include "common/tracing/tracer.h"

namespace cairn::tracing {

// The process that the spans are of.
struct Resource {
  std::string service;   // "cairn-router".
  std::string instance;  // Differs between processes of the service.
  std::string version;
};

// `unix_minus_steady`: what turns a time of a span into nanoseconds since 1970. Texts of callers
// that are not UTF-8 are made valid.
std::string ToOtlp(const Resource& resource, std::span<const Span> spans,
                   int64_t unix_minus_steady);

}  // namespace cairn::tracing
