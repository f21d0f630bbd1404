#include "services/worker/rpc/worker_metrics.h"

#include <string>
#include <string_view>
#include <vector>

#include "common/metrics/buckets.h"
#include "common/metrics/statistic_metrics.h"

namespace cairn::worker {
namespace {

using metrics::kRequestSeconds;
using metrics::kTokenSeconds;

const std::vector<double> kCacheSeconds = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                           0.05,   0.1,   0.25,   0.5,   1,    2.5};

// The help text of metrics that several rows share, apart by a label.
constexpr metrics::SharedHelp kSharedMetrics[] = {
    {"cairn_worker_requests_total", "Requests by how they ended."},
    {"cairn_worker_tokens_total",
     "Tokens of prompts (fetched, computed, or shared with a request that computed them), "
     "generated "
     "tokens, and tokens prefilled in idle time."},
    {"cairn_worker_kv_pages", "Pages of the KV pool; a page holds a block."},
    {"cairn_worker_read_rows_total",
     "Rows of contexts: chosen by steps; of these hit (near already) and late (attention went on "
     "without them); useless (read, but gone before attention read them); lost (the far tier could "
     "not bring them)."},
    {"cairn_worker_read_indexes_total",
     "Indexes of contexts at the cache node: fetched, and made and stored."},
    {"cairn_worker_pushed_blocks_total",
     "Computed blocks by outcome, once for each namespace that they go to."},
    {"cairn_worker_spilled_tokens_total",
     "Tokens whose KV was spilt, and those of them that were computed again because the node had "
     "them no more."},
    {"cairn_worker_spilled_windows_total",
     "Windows of spilt KV that attention read: already there, or waited for."},
};

void Show(const Statistic& row, double value, metrics::Sink& sink) {
  metrics::Show(row, kSharedMetrics, {}, value, sink);
}

// Shows the rest of a metric that rows share, and that is no counter of its own.
void ShowRest(StatisticKind kind, std::string_view metric, std::string_view labels, uint64_t value,
              metrics::Sink& sink) {
  Show({.kind = kind, .name = {}, .metric = metric, .labels = labels, .help = {}},
       metrics::Number(value), sink);
}

void ExportStatistics(const WorkerEngine::Stats& stats, metrics::Sink& sink) {
  ForEachStatistic(stats, [&](const Statistic& row, auto value) {
    Show(row, static_cast<double>(value), sink);
  });
  ShowRest(StatisticKind::kTotal, "cairn_worker_requests_total", "result=completed",
           stats.requests - stats.requests_cancelled - stats.requests_expired, sink);
  ShowRest(StatisticKind::kNow, "cairn_worker_kv_pages", "state=used",
           stats.kv_pages_total - stats.kv_pages_free, sink);
  const SpillReadStats& read = stats.spill.read;
  ShowRest(StatisticKind::kTotal, "cairn_worker_spilled_windows_total", "result=ready",
           read.windows - read.late_windows, sink);
  const std::string bytes = "cairn_worker_spilled_read_bytes_total";
  const std::string bytes_help = "Bytes of spilt KV that were read back.";
  sink.Counter(bytes, bytes_help, {{"how", "lent"}}, metrics::Number(read.bytes.lent));
  sink.Counter(bytes, bytes_help, {{"how", "copied"}},
               metrics::Number(read.bytes.total() - read.bytes.lent));
}

void ExportLoad(const WorkerEngine::Load& load, metrics::Sink& sink) {
  const auto number = [](uint64_t value) { return static_cast<double>(value); };
  const std::string running = "cairn_worker_running_requests";
  const std::string help = "Requests that run, by what they do.";
  sink.Gauge(running, help, {{"state", "prompt"}}, number(load.running_prompts));
  sink.Gauge(running, help, {{"state", "decode"}}, number(load.running_decodes));
  sink.Gauge(running, help, {{"state", "parked"}}, number(load.parked));
  sink.Gauge("cairn_worker_prefill_backlog_seconds",
             "Seconds until the prompts that wait or run are computed.", {}, load.prefill_seconds);
  sink.Gauge("cairn_worker_prefill_tokens_per_second",
             "Prompt tokens computed in a second while nothing else is, as measured. 0: unknown.",
             {}, load.rates.prefill_tokens_per_second);
  sink.Gauge("cairn_worker_drain_tokens_per_second",
             "Prompt tokens computed in a second while others decode, as measured. 0: unknown.", {},
             load.rates.drain_tokens_per_second);
  sink.Gauge("cairn_worker_step_seconds",
             "A step that decodes, before the first request's share, as measured. 0: unknown.", {},
             load.rates.step_seconds);
  sink.Gauge("cairn_worker_decode_seconds",
             "The time that one more decode adds to a step, as measured. 0: unknown.", {},
             load.rates.decode_seconds);
}

void ExportCache(const WorkerEngine::Stats& stats, metrics::Sink& sink) {
  const auto number = [](uint64_t value) { return static_cast<double>(value); };
  const PrefixSession::Stats& prefix = stats.prefix;
  sink.Counter("cairn_worker_matches_total", "Prompts that the cache node was asked about.", {},
               number(prefix.matches));
  const std::string blocks = "cairn_worker_matched_blocks_total";
  const std::string blocks_help = "Blocks that the cache node matched, by what happened to them.";
  sink.Counter(blocks, blocks_help, {{"result", "fetched"}}, number(prefix.fetched_blocks));
  sink.Counter(blocks, blocks_help, {{"result", "abandoned"}}, number(prefix.abandoned_blocks));
  sink.Counter(blocks, blocks_help, {{"result", "chosen"}}, number(prefix.chosen_blocks));
  sink.Counter("cairn_worker_lent_bytes_total",
               "Fetched bytes that were read in place in the node's memory, without a copy.", {},
               number(prefix.fetched.lent));
  const std::string bytes = "cairn_worker_fetched_bytes_total";
  const std::string bytes_help = "Verified bytes from the cache node, by its tier.";
  sink.Counter(bytes, bytes_help, {{"tier", "host"}}, number(prefix.fetched.host));
  sink.Counter(bytes, bytes_help, {{"tier", "disk"}}, number(prefix.fetched.disk));
  sink.Counter(bytes, bytes_help, {{"tier", "device"}}, number(prefix.fetched.device));
  for (size_t i = 1; i < kMissReasonCount; ++i) {
    sink.Counter("cairn_worker_missed_blocks_total",
                 "Full prompt blocks that were computed instead of fetched, by the miss reason of "
                 "the first one.",
                 {{"reason", std::string(Name(static_cast<MissReason>(i)))}},
                 number(prefix.missed_blocks[i]));
  }
  sink.Gauge("cairn_worker_cache_connected", "1 while there is a session with the cache node.", {},
             prefix.connected ? 1 : 0);
  sink.Gauge("cairn_worker_cache_breaker_open",
             "1 while the circuit breaker sends no requests to the cache node.", {},
             prefix.breaker_open ? 1 : 0);
}

void ExportDevice(const WorkerEngine::Stats& stats, metrics::Sink& sink) {
  const auto number = [](uint64_t value) { return static_cast<double>(value); };
  const std::string graphs = "cairn_worker_decode_graphs_total";
  const std::string graphs_help =
      "Graphs of decode steps on a GPU. After one that failed, all steps are launched one by one.";
  sink.Counter(graphs, graphs_help, {{"result", "failed"}}, number(stats.graphs.failures));
  sink.Counter(graphs, graphs_help, {{"result", "noted"}}, number(stats.graphs.noted));
  sink.Counter("cairn_worker_decode_graph_launches_total",
               "Decode steps on a GPU that one launch of a graph did.", {},
               number(stats.graphs.launches));
}

void ExportCodec(const KvCodec::Stats& stats, metrics::Sink& sink) {
  const auto work = [&](const std::string& direction, const KvCodec::Work& done) {
    const metrics::Labels labels = {{"codec", stats.codec}, {"direction", direction}};
    sink.Counter(
        "cairn_worker_codec_input_bytes_total",
        "Input of the codec: bytes in half precision to encode, or stored bytes to decode.", labels,
        static_cast<double>(done.bytes_in));
    sink.Counter("cairn_worker_codec_output_bytes_total", "Output of the codec in bytes.", labels,
                 static_cast<double>(done.bytes_out));
    sink.Counter("cairn_worker_codec_seconds_total", "Time that threads spent in the codec.",
                 labels, done.seconds);
  };
  work("encode", stats.encode);
  work("decode", stats.decode);
}

}  // namespace

WorkerMetrics::WorkerMetrics(metrics::Registry& registry, const WorkerEngine& engine) {
  request_ = registry.AddHistogram("cairn_worker_request_seconds",
                                   "Time from a request's arrival to the end of its answer.",
                                   kRequestSeconds);
  token_ = registry.AddHistogram("cairn_worker_token_seconds",
                                 "Mean time between two tokens of an answer, once for each answer.",
                                 kTokenSeconds);
  const std::string ttft = "cairn_worker_ttft_seconds";
  const std::string ttft_help = "Time from leaving the queue to the first token.";
  ttft_cold_ = registry.AddHistogram(ttft, ttft_help, kRequestSeconds, {{"prefix", "computed"}});
  ttft_warm_ = registry.AddHistogram(ttft, ttft_help, kRequestSeconds, {{"prefix", "fetched"}});
  queue_ = registry.AddHistogram("cairn_worker_queue_seconds", "Time in the request queue.",
                                 kRequestSeconds);
  match_ = registry.AddHistogram("cairn_worker_match_seconds",
                                 "Time until the cache node answered a match.", kCacheSeconds);
  fetch_ =
      registry.AddHistogram("cairn_worker_fetch_seconds",
                            "Time from the match to the last slice of a fetch.", kCacheSeconds);
  registry.AddCollector([&engine](metrics::Sink& sink) {
    const WorkerEngine::Stats stats = engine.GetStats();
    ExportStatistics(stats, sink);
    ExportLoad(engine.GetLoad(), sink);
    ExportCache(stats, sink);
    ExportDevice(stats, sink);
    for (const KvCodec::Stats& codec : stats.codecs) ExportCodec(codec, sink);
  });
}

void WorkerMetrics::Observe(const GenerateSummary& summary) const {
  queue_.Observe(summary.queue_seconds);
  request_.Observe(summary.queue_seconds + summary.total_seconds);
  if (const size_t tokens = summary.tokens.size(); tokens > 1) {
    token_.Observe((summary.total_seconds - summary.ttft_seconds) /
                   static_cast<double>(tokens - 1));
  }
  if (summary.ttft_seconds > 0) {
    (summary.fetched_tokens > 0 ? ttft_warm_ : ttft_cold_).Observe(summary.ttft_seconds);
  }
  if (summary.match_seconds > 0) match_.Observe(summary.match_seconds);
  if (summary.fetch_seconds > 0) fetch_.Observe(summary.fetch_seconds);
}

}  // namespace cairn::worker
