#include "services/cache/serve/node/local_metrics.h"

namespace cairn::cache {

void ExportLocal(const LocalStats* stats, metrics::Registry* registry) {
  static const LocalStats kNone;
  registry->AddCollector([&s = stats != nullptr ? *stats : kNone](metrics::Sink& sink) {
    const auto get = [](const std::atomic<uint64_t>& value) {
      return static_cast<double>(value.load(std::memory_order_relaxed));
    };
    sink.Gauge("cairn_local_sessions", "Open same-node sessions.", {}, get(s.sessions));
    sink.Gauge("cairn_local_held_bytes", "Bytes that same-node sessions lease and reserve.", {},
               get(s.held_bytes));
    const auto ended = [&](const char* outcome, double value) {
      sink.Counter("cairn_local_connections_total",
                   "Connections to the local socket, by what happened to them.",
                   {{"outcome", outcome}}, value);
    };
    ended("opened", get(s.opened_sessions));
    ended("refused", get(s.refused_sessions));
    ended("broken", get(s.broken_sessions));
    ended("postponed", get(s.failed_accepts));
    sink.Counter("cairn_local_descriptors_total", "Descriptors taken out of rings.", {},
                 get(s.descriptors));
    sink.Counter("cairn_local_rejected_descriptors_total",
                 "Descriptors that were malformed or not permitted.", {},
                 get(s.rejected_descriptors));
    const auto bytes = [&](const char* direction, double value) {
      sink.Counter("cairn_local_bytes_total",
                   "Bytes that same-node sessions read or wrote in place; also in "
                   "cairn_transfer_bytes_total.",
                   {{"direction", direction}}, value);
    };
    bytes("read", get(s.read_bytes));
    bytes("write", get(s.written_bytes));
    sink.Counter("cairn_local_segments_total",
                 "Descriptors of arena segments that were handed out.", {}, get(s.shared_segments));
    sink.Counter("cairn_local_chunks_total", "Descriptors of chunks of GPUs that were handed out.",
                 {}, get(s.shared_chunks));
  });
}

}  // namespace cairn::cache
