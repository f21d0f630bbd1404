#pragma once
// Counters of the calls themselves: one row per method.

#include <array>
#include <mutex>
#include <string_view>

#include "services/common/metrics/metrics.h"
#include "services/common/status/status.h"

namespace cairn::cache {

enum class Method : uint8_t {
  kOpenSession,
  kOpenNamespace,
  kMatch,
  kFetch,
  kExists,
  kReserve,
  kPush,
  kCommit,
  kAbort,
  kRelease,
  kRenewLease,
  kPrefetch,
  kFlush,
  kStat,
  kWatch,
  kListNamespaces,
  kDropNamespace,
  kDropTenant,
  kBumpEpoch,
};
inline constexpr size_t kMethodCount = 19;
std::string_view Name(Method method);  // "Match": as in the proto.

enum class Rejection : uint8_t { kOverload, kDraining, kAuth, kInvalid, kStalled };
inline constexpr size_t kRejectionCount = 5;

// Thread-safe. Handles are resolved once; only the `code` label is made when it is first seen.
class RpcMetrics {
 public:
  explicit RpcMetrics(metrics::Registry* registry);

  void Begin(Method method) const { Row(method).in_flight.Add(1); }
  // `seconds` < 0: a stream that lives as long as its client wants; its length says nothing.
  void End(Method method, StatusCode code, double seconds);
  void Received(Method method, uint64_t bytes) const {
    Row(method).received.Add(static_cast<double>(bytes));
  }
  void Sent(Method method, uint64_t bytes) const {
    Row(method).sent.Add(static_cast<double>(bytes));
  }
  void Rejected(Rejection reason) const { rejected_[static_cast<size_t>(reason)].Add(); }

 private:
  static constexpr size_t kCodes = 17;  // google.rpc.Code.
  struct MethodRow {
    metrics::Gauge in_flight;
    metrics::Counter received, sent;
    metrics::Histogram duration;
    std::array<std::once_flag, kCodes> once;
    std::array<metrics::Counter, kCodes> requests;
  };
  const MethodRow& Row(Method method) const { return rows_[static_cast<size_t>(method)]; }
  const metrics::Counter& Requests(Method method, StatusCode code);

  metrics::Registry* const registry_;
  std::array<MethodRow, kMethodCount> rows_;
  std::array<metrics::Counter, kRejectionCount> rejected_;
};

}  // namespace cairn::cache
