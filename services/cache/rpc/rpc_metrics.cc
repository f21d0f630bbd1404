#include "services/cache/rpc/rpc_metrics.h"

#include "services/common/log/log.h"

namespace cairn::cache {
namespace {

constexpr std::string_view kNames[kMethodCount] = {
    "OpenSession", "OpenNamespace",  "Match",         "Fetch",      "Exists",   "Reserve", "Push",
    "Commit",      "Abort",          "Release",       "RenewLease", "Prefetch", "Flush",   "Stat",
    "Watch",       "ListNamespaces", "DropNamespace", "DropTenant", "BumpEpoch"};

constexpr std::string_view kRejections[kRejectionCount] = {"overload", "draining", "auth",
                                                           "invalid", "stalled"};

// As grpc::StatusCode spells them in Prometheus' usual way.
constexpr std::string_view kCodeNames[] = {
    "OK",       "Cancelled",      "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};

}  // namespace

std::string_view Name(Method method) { return kNames[static_cast<size_t>(method)]; }

RpcMetrics::RpcMetrics(metrics::Registry* registry) : registry_(registry) {
  const std::vector<double> buckets = {0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01,
                                       0.025,  0.05,    0.1,    0.25,  0.5,   1,     5};
  for (size_t i = 0; i < kMethodCount; ++i) {
    const auto method = static_cast<Method>(i);
    const metrics::Labels labels = {{"method", std::string(kNames[i])}};
    rows_[i].in_flight =
        registry->AddGauge("cairn_rpc_in_flight_requests", "Calls that have not ended.", labels);
    rows_[i].received =
        registry->AddCounter("cairn_rpc_received_bytes_total", "Bytes of requests.", labels);
    rows_[i].sent = registry->AddCounter("cairn_rpc_sent_bytes_total", "Bytes of answers.", labels);
    if (method != Method::kOpenSession && method != Method::kWatch) {
      rows_[i].duration =
          registry->AddHistogram("cairn_rpc_duration_seconds",
                                 "Time from the arrival of a call to its status.", buckets, labels);
    }
    Requests(method, StatusCode::kOk);
  }
  for (size_t i = 0; i < kRejectionCount; ++i) {
    rejected_[i] =
        registry->AddCounter("cairn_rpc_rejected_total",
                             "Calls refused before any work was done for them; `stalled`: fetches "
                             "cut off because their reader took nothing.",
                             {{"reason", std::string(kRejections[i])}});
  }
}

const metrics::Counter& RpcMetrics::Requests(Method method, StatusCode code) {
  MethodRow& row = rows_[static_cast<size_t>(method)];
  const size_t number = static_cast<size_t>(code) < kCodes ? static_cast<size_t>(code) : 2;
  std::call_once(row.once[number], [&] {
    row.requests[number] = registry_->AddCounter(
        "cairn_rpc_requests_total", "Calls that ended, by status.",
        {{"method", std::string(Name(method))}, {"code", std::string(kCodeNames[number])}});
  });
  return row.requests[number];
}

void RpcMetrics::End(Method method, StatusCode code, double seconds) {
  Row(method).in_flight.Add(-1);
  Requests(method, code).Add();
  if (seconds >= 0) Row(method).duration.Observe(seconds);
}

}  // namespace cairn::cache
