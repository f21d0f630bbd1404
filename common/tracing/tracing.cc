#include "common/tracing/tracing.h"

#include <random>
#include <utility>

namespace cairn::tracing {
namespace {

uint64_t Seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

Result<std::unique_ptr<Tracing>> Tracing::Start(const Settings& settings, Resource resource) {
  Exporter::Options options;
  CAIRN_ASSIGN_OR_RETURN(options.collector, ParseCollector(settings.endpoint, "tracing.endpoint"));
  CAIRN_ASSIGN_OR_RETURN(options.headers, ReadHeaders(settings.headers, "tracing.headers"));
  options.resource = std::move(resource);
  auto client = http::MakeClient({.tls = options.collector.origin.tls, .authorities = settings.ca});
  if (!client.ok()) return Annotate(client.status(), "tracing.ca");
  return std::unique_ptr<Tracing>(
      new Tracing(settings.sample, std::move(options), *std::move(client)));
}

Tracing::Tracing(double sample, Exporter::Options options, std::unique_ptr<http::Client> client)
    : exporter_(std::move(options), std::move(client)),
      tracer_(sample, Seed(), [this](Span span) { exporter_.Add(std::move(span)); }) {}

}  // namespace cairn::tracing
