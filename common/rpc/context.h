#pragma once
// The state that all calls of a server share.

#include <atomic>
#include <optional>
#include <string>
#include <string_view>

#include "cairn/common/clock.h"
#include "common/auth/access.h"
#include "common/lifecycle/lifecycle.h"
#include "common/rpc/call_metrics.h"
#include "common/rpc/frame_bounds.h"
#include "common/rpc/request_bytes.h"
#include "common/tracing/tracer.h"

namespace cairn::rpc {

// All that it points to must outlive the server. Constant once the server has started, but for
// `draining`, which may be set and read by any thread.
struct Context {
  const Clock* clock = nullptr;
  CallMetrics* metrics = nullptr;
  Gate* gate = nullptr;  // Calls under way; closed when the process stops.
  // Budget for the requests that calls hold; nullptr: no limit.
  RequestBytes* request_bytes = nullptr;
  const FrameBounds* bounds = nullptr;  // The bounds of the fields of requests; nullptr: none.
  tracing::Tracer* tracer = nullptr;    // nullptr: nobody wants spans.
  // The rights of callers. nullptr: whoever reaches the port may call every method.
  auth::Access* access = nullptr;
  // The role that a method asks for, by its path: "/cairn.v1.Cache/Match". REQUIRED with `access`.
  // nullopt: it has none, and nobody may call it.
  std::optional<auth::Role> (*role_of)(std::string_view path) = nullptr;
  // The method whose calls may be the first of a trace. Empty: none is.
  std::string_view entry = {};
  // The words of refusals: "the node is shutting down"; the setting that bounds the gate.
  std::string process = "server";
  std::string limit = "the limit of calls";
  std::atomic<bool> draining{false};  // No new streams; health says NOT_SERVING.
};

}  // namespace cairn::rpc
