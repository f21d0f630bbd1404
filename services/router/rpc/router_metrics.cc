#include "services/router/rpc/router_metrics.h"

#include <array>
#include <string>
#include <vector>

#include "common/metrics/buckets.h"

namespace cairn::router {
namespace {

const std::vector<double> kShortTimes = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                         0.01,   0.025,   0.05,   0.1,   0.25,   1};

void ExportRequests(const RouterEngine::Numbers& numbers, metrics::Sink& sink) {
  const std::string requests = "cairn_router_requests_total";
  const std::string help = "Requests by how they ended.";
  const auto add = [&](const char* result, uint64_t value) {
    sink.Counter(requests, help, {{"result", result}}, metrics::Number(value));
  };
  add("completed", numbers.completed);
  add("cancelled", numbers.cancelled);
  add("rejected", numbers.rejected);
  add("shed", numbers.shed);
  add("unavailable", numbers.unavailable);
  add("broken", numbers.broken);
  sink.Gauge("cairn_router_active_requests", "Requests under way.", {},
             metrics::Number(numbers.active));
  sink.Counter("cairn_router_tries_again_total",
               "Times that a request went to another worker before its first token.", {},
               metrics::Number(numbers.tries_again));
  sink.Counter("cairn_router_paired_total",
               "Times that a worker was asked to compute a prompt for another one.", {},
               metrics::Number(numbers.paired));
  sink.Counter("cairn_router_failed_prefills_total",
               "How many of these failed in that worker. The other one computes the rest.", {},
               metrics::Number(numbers.prefills_failed));
  const std::string tokens = "cairn_router_tokens_total";
  const std::string tokens_help =
      "Tokens of completed requests: of prompts, of these those that were not computed, and "
      "generated ones.";
  sink.Counter(tokens, tokens_help, {{"kind", "prompt"}}, metrics::Number(numbers.prompt_tokens));
  sink.Counter(tokens, tokens_help, {{"kind", "cached"}}, metrics::Number(numbers.cached_tokens));
  sink.Counter(tokens, tokens_help, {{"kind", "generated"}},
               metrics::Number(numbers.generated_tokens));
}

void ExportWorkers(const std::vector<RegisteredWorker>& workers, metrics::Sink& sink) {
  std::array<uint64_t, 4> conditions{};
  uint64_t prefill = 0;
  for (const RegisteredWorker& worker : workers) {
    const bool ready = worker.condition == WorkerCondition::kReady;
    ++(ready && worker.only_prefills() ? prefill
                                       : conditions[static_cast<size_t>(worker.condition)]);
  }
  for (size_t i = 0; i < conditions.size(); ++i) {
    sink.Gauge("cairn_router_workers", "Configured workers by condition.",
               {{"condition", std::string(Name(static_cast<WorkerCondition>(i)))}},
               metrics::Number(conditions[i]));
  }
  sink.Gauge("cairn_router_workers", "Configured workers by condition.", {{"condition", "prefill"}},
             metrics::Number(prefill));
}

void ExportPicks(const Dispatcher::Picks& picks, metrics::Sink& sink) {
  const std::string name = "cairn_router_picks_total";
  const std::string help =
      "Decisions by how much of the prompt the picked worker holds. most: as much as any other. "
      "less: less than another one. none: nobody holds any of it.";
  const auto add = [&](const char* prefix, uint64_t value) {
    sink.Counter(name, help, {{"prefix", prefix}}, metrics::Number(value));
  };
  add("most", picks.held_most);
  add("less", picks.held_less);
  add("none", picks.held_nowhere);
}

// A router that follows no nodes has no members: none are missing then.
void ExportIndex(const PrefixIndex::Numbers& index, bool follows_nodes, metrics::Sink& sink) {
  sink.Gauge("cairn_router_index_entries", "Blocks that the index knows.", {},
             metrics::Number(index.entries));
  sink.Gauge("cairn_router_index_bytes", "Memory of these.", {}, metrics::Number(index.bytes));
  sink.Gauge("cairn_router_index_max_bytes", "Most memory that these may have.", {},
             metrics::Number(index.max_bytes));
  if (follows_nodes) {
    sink.Gauge("cairn_router_index_members", "Cache nodes that the index follows.", {},
               metrics::Number(index.members));
  }
  sink.Counter("cairn_router_index_evicted_total",
               "Entries of the index that left because its memory was full.", {},
               metrics::Number(index.evicted));
  sink.Counter("cairn_router_index_ignored_total",
               "Events that made no sense, or for which there was no room.", {},
               metrics::Number(index.ignored));
}

void ExportPrompts(const PromptReader::Numbers& prompts, metrics::Sink& sink) {
  const std::string name = "cairn_router_engine_prompts_total";
  const std::string help =
      "Prompts for engines, by what the router compares them by: tokens, or their text.";
  sink.Counter(name, help, {{"keys", "tokens"}}, metrics::Number(prompts.from_tokens));
  sink.Counter(name, help, {{"keys", "text"}}, metrics::Number(prompts.from_text));
  const std::string asked = "cairn_router_tokenize_total";
  const std::string asked_help = "Prompts whose tokens the router asked an engine for.";
  sink.Counter(asked, asked_help, {{"result", "ok"}},
               metrics::Number(prompts.asked - prompts.failed));
  sink.Counter(asked, asked_help, {{"result", "failed"}}, metrics::Number(prompts.failed));
}

void ExportWaitingPrompts(const FairQueue::Numbers& waiting, metrics::Sink& sink) {
  sink.Gauge("cairn_router_waiting_prompts", "Prompts that wait to be tokenised.", {},
             metrics::Number(waiting.works));
  sink.Gauge("cairn_router_waiting_text_bytes", "Bytes of these.", {},
             metrics::Number(waiting.bytes));
}

}  // namespace

void ExportRouter(const ScrapedParts& parts, metrics::Registry* registry) {
  registry->AddCollector([parts](metrics::Sink& sink) {
    ExportRequests(parts.engine->numbers(), sink);
    ExportWaitingPrompts(parts.engine->waiting_prompts(), sink);
    ExportWorkers(parts.registry->Workers(), sink);
    ExportIndex(parts.index->numbers(), parts.follows_nodes, sink);
    const Dispatcher::Numbers dispatched = parts.dispatcher->numbers();
    ExportPicks(dispatched.picks, sink);
    sink.Gauge("cairn_router_arrivals_per_second", "Requests in a second, over the last minute.",
               {}, dispatched.arrivals_per_second);
    sink.Gauge("cairn_router_use_ratio",
               "Share of the last minute in which workers had prompts to compute.", {},
               dispatched.use);
    if (parts.prompts != nullptr) ExportPrompts(parts.prompts->numbers(), sink);
    if (parts.encoder == nullptr) return;
    const PieceCache::Numbers cache = parts.encoder->cache();
    const std::string bytes = "cairn_router_text_bytes_total";
    const std::string help = "Text of messages, by whether its tokens were known.";
    sink.Counter(bytes, help, {{"tokens", "known"}}, metrics::Number(cache.hits));
    sink.Counter(bytes, help, {{"tokens", "made"}}, metrics::Number(cache.misses));
  });
}

void ExportHttp(const HttpEdge::Stats& stats, metrics::Sink& sink) {
  if (stats.keys_stale) ExportKeyFile("http.api_keys", *stats.keys_stale, sink);
  for (const auto& [answer, count] : stats.api.answers) {
    sink.Counter(
        "cairn_router_http_answers_total", "Answers by route and HTTP status code.",
        {{"route", std::string(Name(answer.first))}, {"code", std::to_string(answer.second)}},
        metrics::Number(count));
  }
  sink.Gauge("cairn_router_http_open_streams", "Streams of events that are open.", {},
             metrics::Number(stats.api.open_streams));
  sink.Counter("cairn_router_http_failed_streams_total",
               "Streams of events that ended with an error event.", {},
               metrics::Number(stats.api.failed_streams));
  sink.Counter("cairn_router_http_aborted_total",
               "Requests whose client went before the answer was complete.", {},
               metrics::Number(stats.api.aborted_calls));
  sink.Gauge("cairn_router_http_connections", "Connections that are open.", {},
             metrics::Number(stats.server.connections));
  sink.Gauge("cairn_router_http_body_bytes",
             "Bytes of bodies that arrive or are under way, and of what was made of them.", {},
             metrics::Number(stats.server.body_bytes));
  sink.Gauge("cairn_router_http_unread_bytes",
             "Bytes of answers that their readers have not taken yet.", {},
             metrics::Number(stats.server.unread_bytes));
  const std::string refused = "cairn_router_http_refused_total";
  const std::string help =
      "Connections without a place, requests that are no HTTP or too large, and connections that "
      "ended because their sender or reader was too slow.";
  const auto add = [&](const char* reason, uint64_t count) {
    sink.Counter(refused, help, {{"reason", reason}}, metrics::Number(count));
  };
  add("connections", stats.server.refused_connections);
  add("requests", stats.server.refused_requests);
  add("slow_sender", stats.server.slow_senders);
  add("slow_reader", stats.server.slow_readers);
}

void ExportKeyFile(const std::string& setting, bool stale, metrics::Sink& sink) {
  sink.Gauge("cairn_router_keys_stale",
             "1: the file of keys cannot be used, so the keys that it had before still count.",
             {{"setting", setting}}, stale ? 1 : 0);
}

void ExportPicker(const PickerStats& stats, metrics::Sink& sink) {
  for (size_t i = 0; i < kPickResults; ++i) {
    sink.Counter("cairn_router_picker_requests_total",
                 "Requests of a gateway by what the endpoint picker said.",
                 {{"result", std::string(Name(static_cast<PickResult>(i)))}},
                 metrics::Number(stats.results[i]));
  }
  sink.Gauge("cairn_router_picker_open_streams",
             "Requests of a gateway whose answers have not ended.", {},
             metrics::Number(stats.open_streams));
  sink.Gauge("cairn_router_picker_body_bytes",
             "Bytes of bodies that wait for an endpoint, or whose pieces wait for the gateway.", {},
             metrics::Number(stats.body_bytes));
  sink.Counter("cairn_router_picker_moved_total",
               "Answers that came from another endpoint than the picked one.", {},
               metrics::Number(stats.moved));
}

std::function<void(double)> PickTime(metrics::Registry* registry) {
  const metrics::Histogram took = registry->AddHistogram(
      "cairn_router_picker_seconds",
      "Time from a gateway's whole request until its endpoint was picked.", kShortTimes);
  return [took](double seconds) { took.Observe(seconds); };
}

std::function<void(double)> AddedTime(metrics::Registry* registry) {
  const metrics::Histogram added = registry->AddHistogram(
      "cairn_router_http_added_seconds",
      "Time that the HTTP port took of a complete request before the router had it.", kShortTimes);
  return [added](double seconds) { added.Observe(seconds); };
}

RouterEngine::Observers RouterTimes(metrics::Registry* registry) {
  const metrics::Histogram prepared = registry->AddHistogram(
      "cairn_router_prepare_seconds",
      "Time from a request's arrival until it was sent to its first worker.", kShortTimes);
  const metrics::Histogram first_token = registry->AddHistogram(
      "cairn_router_ttft_seconds", "Time from a request's arrival to its first token.",
      metrics::kRequestSeconds);
  const metrics::Histogram answered = registry->AddHistogram(
      "cairn_router_request_seconds",
      "Time from a request's arrival to the end of its complete answer.", metrics::kRequestSeconds);
  const metrics::Histogram token = registry->AddHistogram(
      "cairn_router_token_seconds",
      "Mean time between two tokens of an answer, once for each answer.", metrics::kTokenSeconds);
  return {.prepared = [prepared](double seconds) { prepared.Observe(seconds); },
          .first_token = [first_token](double seconds) { first_token.Observe(seconds); },
          .answered = [answered](double seconds) { answered.Observe(seconds); },
          .token = [token](double seconds) { token.Observe(seconds); }};
}

}  // namespace cairn::router
