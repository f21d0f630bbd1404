#pragma once
// Counters of the calls themselves: one row per method.

#include <array>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>

#include "cairn/common/status.h"
#include "common/metrics/metrics.h"

namespace cairn::rpc {

enum class Rejection : uint8_t { kOverload, kDraining, kAuth, kInvalid, kStalled, kShare };
inline constexpr size_t kRejectionCount = 6;

// How long a call of a method lasts.
enum class Life {
  kBounded,  // As long as its work.
  // As long as its client wants: the length says nothing, and a client that cancels has not failed.
  kOpenEnded,
};

// A method of a service: its names and its numbers. Thread-safe.
class Method {
 public:
  // CallMetrics::Add makes them. `registry` must outlive it.
  Method(metrics::Registry* registry, std::string_view service, std::string_view name, Life life);
  Method(const Method&) = delete;
  Method& operator=(const Method&) = delete;

  const std::string& name() const { return name_; }  // "Match": as in the proto.
  const std::string& path() const { return path_; }  // "/cairn.v1.Cache/Match".
  Life life() const { return life_; }

  void Begin() const { in_flight_.Add(1); }
  // `seconds`: from the call's arrival. Not counted for a method that is open-ended.
  void End(StatusCode code, double seconds);
  void Received(uint64_t bytes) const { received_.Add(static_cast<double>(bytes)); }
  void Sent(uint64_t bytes) const { sent_.Add(static_cast<double>(bytes)); }

 private:
  static constexpr size_t kCodes = 17;  // google.rpc.Code.
  const metrics::Counter& Requests(StatusCode code);

  metrics::Registry* const registry_;
  const std::string name_, path_;
  const Life life_;
  metrics::Gauge in_flight_;
  metrics::Counter received_, sent_;
  metrics::Histogram duration_;
  // Handles are resolved once; only the `code` label is made when it is first seen.
  std::array<std::once_flag, kCodes> once_;
  std::array<metrics::Counter, kCodes> requests_;
};

// The numbers of one server. Thread-safe, but for Add.
class CallMetrics {
 public:
  // `registry` must outlive it.
  explicit CallMetrics(metrics::Registry* registry);

  // A row for the method, which lives as long as this. Before the server starts. `service` and
  // `name` as in the proto.
  Method* Add(std::string_view service, std::string_view name, Life life = Life::kBounded);
  void Rejected(Rejection reason) const { rejected_[static_cast<size_t>(reason)].Add(); }

 private:
  metrics::Registry* const registry_;
  std::deque<Method> methods_;  // Their addresses stay.
  std::array<metrics::Counter, kRejectionCount> rejected_;
};

}  // namespace cairn::rpc
