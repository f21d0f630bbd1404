#include "services/cache/serve/node/local_metrics.h"

#include <utility>

namespace cairn::cache {
namespace {

// A call that finds everything in memory takes microseconds; one that waits for the disk or for
// another node, as long as its caller lets it.
const std::vector<double> kBuckets = {1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 1e-4,
                                      1e-3, 1e-2,   0.1,  1,    10};

constexpr std::pair<shm::Op, const char*> kCalls[] = {
    {shm::Op::kMatch, "match"},   {shm::Op::kExists, "exists"},
    {shm::Op::kLocate, "locate"}, {shm::Op::kRelease, "release"},
    {shm::Op::kRenew, "renew"},   {shm::Op::kReserve, "reserve"},
    {shm::Op::kCommit, "commit"}, {shm::Op::kAbort, "abort"},
    {shm::Op::kReport, "report"}, {shm::Op::kMatchPools, "match_pools"},
};

}  // namespace

LocalMetrics::LocalMetrics(metrics::Registry* registry) : lookups_(registry) {
  for (const auto& [op, name] : kCalls) {
    seconds_[static_cast<size_t>(op)] =
        registry->AddHistogram("cairn_local_call_seconds",
                               "Time from a same-node call's way out of its ring to its answer.",
                               kBuckets, {{"call", name}});
  }
}

void LocalMetrics::OnAnswer(shm::Op op, Duration took) {
  seconds_[static_cast<size_t>(op)].Observe(Seconds(took));
}

void LocalMetrics::OnMatch(const MatchResult& result, size_t asked, uint32_t block_tokens) {
  lookups_.Count(result, asked, block_tokens);
}

void LocalMetrics::OnMatchPools(const MatchResult& result, const JointQuestion& question,
                                uint64_t asked_tokens) {
  lookups_.CountJoint(result, question, asked_tokens);
}

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
