#include "services/router/picker/picker_edge.h"

#include <algorithm>
#include <utility>

#include "common/lifecycle/lifecycle.h"
#include "common/memory/fair_budget.h"
#include "common/rpc/health_service.h"
#include "common/rpc/server.h"
#include "services/router/picker/process_stream.h"

namespace cairn::router {
namespace {

// Bytes of a message beyond the body in it: headers and metadata.
constexpr uint64_t kRestBytes = 1 << 20;
constexpr uint64_t kLeastFrames = 16 << 20;
// Far above what gateways send: their headers have bounds of their own.
constexpr rpc::FieldBound kBounds[] = {
    {"envoy.service.ext_proc.v3.HeaderMap.headers", 4096},
    {"envoy.service.ext_proc.v3.Metadata.filter_metadata", 4096},
    {"google.protobuf.Struct.fields", 16384},
    {"google.protobuf.ListValue.values", 16384},
};
// Cancelled streams end as soon as gRPC tells them.
constexpr Duration kLastMessages = std::chrono::milliseconds(500);

}  // namespace

uint64_t FrameBytes(const PickerConfig& config) {
  return std::max(config.all_bodies, 2 * (config.max_body + kRestBytes) + kLeastFrames);
}

void Register(config::Schema& schema, PickerConfig& c) {
  schema.Text("picker.listen", &c.listen,
              "Address of the gRPC port on which a gateway's Envoy asks for endpoints "
              "(docs/operate/router.md, \"Behind a gateway\"), HOST:PORT. Port 0 picks a free one. "
              "Empty: no such port.");
  schema.Bytes("picker.max_body", &c.max_body, "Longest body of a request through the gateway.",
               {.min = 1 << 10, .max = 1 << 30});
  schema.Bytes(
      "picker.all_bodies", &c.all_bodies,
      "Memory for the bodies of all requests that wait for an endpoint or whose pieces wait for "
      "the gateway, and for the prompts that the router makes of them. The router refuses what "
      "does not fit with 503.",
      {.min = 1 << 10});
  schema.Check([&c]() -> Status {
    if (c.max_body <= c.all_bodies) return OkStatus();
    return InvalidArgument("picker.all_bodies: got {}, expected at least picker.max_body, {}",
                           config::FormatBytes(c.all_bodies), config::FormatBytes(c.max_body));
  });
}

// Members end in the opposite order: the server first, then what its calls use.
struct PickerEdge::Impl {
  Impl(const PickerConfig& config, bool relay, uint32_t max_endpoints, Router* router,
       BodyReads* reads, rpc::CallMetrics* metrics, std::function<void(double)> observe_pick)
      : parts{.router = router,
              .bodies = std::make_shared<FairBudget>(
                  config.all_bodies, BudgetName{.item = "picker", .setting = "picker.all_bodies"}),
              .counters = &counters,
              .clock = &SteadyClock::Get(),
              .reads = reads,
              .relay = relay,
              .max_body_bytes = config.max_body,
              .max_endpoints = max_endpoints} {
    if (observe_pick) parts.observe_pick = std::move(observe_pick);
    context.clock = &SteadyClock::Get();
    context.metrics = metrics;
    context.gate = &gate;
    context.bounds = &bounds;
    context.process = "router";
  }

  PickerCounters counters;
  Exchange::Parts parts;
  Gate gate;  // The router bounds the requests under way.
  const rpc::FrameBounds bounds{kBounds};
  rpc::Context context;
  // The names that the endpoint picker protocol wants to be asked about.
  rpc::HealthService health{&context, {kPickerService, "liveness", "readiness"}};
  rpc::Server server;
};

PickerEdge::PickerEdge(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<PickerEdge>> PickerEdge::Start(const PickerConfig& config,
                                                      const net::TlsOptions& tls, bool relay,
                                                      uint32_t max_endpoints, Router* router,
                                                      BodyReads* reads, rpc::CallMetrics* metrics,
                                                      std::function<void(double)> observe_pick) {
  auto impl = std::make_unique<Impl>(config, relay, max_endpoints, router, reads, metrics,
                                     std::move(observe_pick));
  rpc::Method* const process = metrics->Add(kPickerService, "Process", rpc::Life::kOpenEnded);
  impl->server.calls()->AddStream(process->path(), [parts = &impl->parts, context = &impl->context,
                                                    process](std::unique_ptr<rpc::RawCall> call) {
    ProcessStream::Start(*parts, context, process, std::move(call));
  });
  impl->health.AddTo(impl->server.calls());
  const Status started =
      impl->server.Start({.listen = config.listen,
                          .tls = tls,
                          .max_message_bytes = static_cast<int>(
                              std::min<uint64_t>(config.max_body + kRestBytes, INT32_MAX)),
                          .memory_bytes = FrameBytes(config)});
  if (!started.ok()) return Annotate(started, "picker.listen");
  return std::unique_ptr<PickerEdge>(new PickerEdge(std::move(impl)));
}

PickerEdge::~PickerEdge() {
  impl_->health.EndStreams();
  impl_->server.Shutdown(kLastMessages);
}

std::string PickerEdge::address() const { return impl_->server.address(); }

void PickerEdge::StartDrain() {
  impl_->context.draining = true;
  impl_->health.Tick();
}

void PickerEdge::Tick() { impl_->health.Tick(); }

Duration PickerEdge::BusyFor() const { return std::as_const(impl_->server).calls().BusyFor(); }

PickerStats PickerEdge::GetStats() const {
  PickerStats stats = impl_->counters.Get();
  stats.body_bytes = impl_->parts.bodies->used();
  stats.body_refusals = impl_->parts.bodies->refusals();
  return stats;
}

}  // namespace cairn::router
