#include "common/rpc/call_metrics.h"

#include <fmt/format.h>

#include <vector>

namespace cairn::rpc {
namespace {

constexpr std::string_view kRejections[kRejectionCount] = {"overload", "draining", "auth",
                                                           "invalid",  "stalled",  "share"};

// As grpc::StatusCode spells them in Prometheus' usual way.
constexpr std::string_view kCodeNames[] = {
    "OK",       "Cancelled",      "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};

}  // namespace

Method::Method(metrics::Registry* registry, std::string_view service, std::string_view name,
               Life life)
    : registry_(registry), name_(name), path_(fmt::format("/{}/{}", service, name)), life_(life) {
  const metrics::Labels labels = {{"method", name_}};
  in_flight_ =
      registry->AddGauge("cairn_rpc_in_flight_requests", "Calls that have not ended.", labels);
  received_ = registry->AddCounter("cairn_rpc_received_bytes_total", "Bytes of requests.", labels);
  sent_ = registry->AddCounter("cairn_rpc_sent_bytes_total", "Bytes of answers.", labels);
  if (life == Life::kBounded) {
    const std::vector<double> buckets = {0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01,
                                         0.025,  0.05,    0.1,    0.25,  0.5,   1,     5};
    duration_ =
        registry->AddHistogram("cairn_rpc_duration_seconds",
                               "Time from the arrival of a call to its status.", buckets, labels);
  }
  Requests(StatusCode::kOk);
}

const metrics::Counter& Method::Requests(StatusCode code) {
  const size_t number = static_cast<size_t>(code) < kCodes ? static_cast<size_t>(code) : 2;
  std::call_once(once_[number], [&] {
    requests_[number] =
        registry_->AddCounter("cairn_rpc_requests_total", "Calls that ended, by status.",
                              {{"method", name_}, {"code", std::string(kCodeNames[number])}});
  });
  return requests_[number];
}

void Method::End(StatusCode code, double seconds) {
  in_flight_.Add(-1);
  Requests(code).Add();
  if (life_ == Life::kBounded) duration_.Observe(seconds);
}

CallMetrics::CallMetrics(metrics::Registry* registry) : registry_(registry) {
  for (size_t i = 0; i < kRejectionCount; ++i) {
    rejected_[i] =
        registry->AddCounter("cairn_rpc_rejected_total",
                             "Calls refused before any work was done for them. stalled: streams "
                             "that were ended because their client took or sent nothing. share: "
                             "the connection has its share of the places.",
                             {{"reason", std::string(kRejections[i])}});
  }
}

Method* CallMetrics::Add(std::string_view service, std::string_view name, Life life) {
  return &methods_.emplace_back(registry_, service, name, life);
}

}  // namespace cairn::rpc
