#pragma once
// The port on which a gateway asks where each request is to go: settings, and the gRPC server with
// Envoy's ExternalProcessor.
//
//   PickerConfig config;
//   Register(schema, config);                      // picker.*
//   ...
//   auto edge = PickerEdge::Start(config, tls, relay, max_endpoints, &router, &call_metrics,
//                                 observe_pick);
//   (*edge)->StartDrain();
//
// Its own port: who may reach it is another question than who may send requests, and a gateway's
// Envoy asks for nothing else there. Callers are believed: whoever reaches it makes workers look
// busy.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cairn/common/clock.h"
#include "common/config/config.h"
#include "common/net/tls.h"
#include "common/rpc/call_metrics.h"
#include "services/router/engine/router.h"
#include "services/router/http/body_reads.h"
#include "services/router/picker/picker_stats.h"

namespace cairn::router {

inline constexpr char kPickerService[] = "envoy.service.ext_proc.v3.ExternalProcessor";

struct PickerConfig {
  std::string listen;  // Empty: no picker.
  uint64_t max_body = 8 << 20;
  uint64_t all_bodies = 64 << 20;
};

// Memory for gRPC's frames of all streams.
uint64_t FrameBytes(const PickerConfig& config);

// Registers picker.* and their check. `config` must outlive `schema`.
void Register(config::Schema& schema, PickerConfig& config);

// Thread-safe, but for its end.
class PickerEdge {
 public:
  // `router`, `reads` and `metrics` must outlive the edge. `relay`: its workers are engines. At
  // most `max_endpoints` in an answer. Errors name the setting.
  static Result<std::unique_ptr<PickerEdge>> Start(const PickerConfig& config,
                                                   const net::TlsOptions& tls, bool relay,
                                                   uint32_t max_endpoints, Router* router,
                                                   BodyReads* reads, rpc::CallMetrics* metrics,
                                                   std::function<void(double)> observe_pick);
  // Cancels what is under way, and waits until it has ended.
  ~PickerEdge();

  std::string address() const;
  // Refuses new requests. Those that were picked go on.
  void StartDrain();
  // Tells who watches its health; every 100 ms or so.
  void Tick();
  Duration BusyFor() const;
  PickerStats GetStats() const;

 private:
  struct Impl;
  explicit PickerEdge(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::router
