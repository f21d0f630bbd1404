#include "services/router/rpc/engine_events.h"

#include <algorithm>

namespace cairn::router {
namespace {

// Sums of all engines.
struct Sums {
  uint64_t connected = 0, lost = 0;
  double longest_silence = 0;
  EngineFeed::Numbers feed;
  EngineView::Numbers view;
};

Sums SumOf(const ZmqFollower& follower) {
  const ZmqFollower::Past past = follower.past();
  Sums sums{.feed = past.feed, .view = past.view};
  for (const ZmqFollower::Engine& one : follower.engines()) {
    ++(one.connected ? sums.connected : sums.lost);
    if (one.silent) sums.longest_silence = std::max(sums.longest_silence, Seconds(*one.silent));
    sums.feed += one.feed;
    sums.view += one.view;
  }
  return sums;
}

void ExportFeeds(const Sums& sums, metrics::Sink& sink) {
  const std::string streams = "cairn_router_engine_event_streams";
  const std::string streams_help = "Engines whose KV events are followed, by condition.";
  sink.Gauge(streams, streams_help, {{"condition", "connected"}}, metrics::Number(sums.connected));
  sink.Gauge(streams, streams_help, {{"condition", "lost"}}, metrics::Number(sums.lost));
  sink.Gauge("cairn_router_engine_event_silence_seconds",
             "Longest time since an engine's last batch of events.", {}, sums.longest_silence);
  const std::string batches = "cairn_router_engine_event_batches_total";
  const std::string batches_help = "Batches of events, by how they came.";
  sink.Counter(batches, batches_help, {{"way", "live"}}, metrics::Number(sums.feed.live_batches));
  sink.Counter(batches, batches_help, {{"way", "replay"}},
               metrics::Number(sums.feed.replayed_batches));
  const std::string replays = "cairn_router_engine_event_replays_total";
  const std::string replays_help =
      "Replays that were asked for, and those of them that did not bring all that was missing.";
  sink.Counter(replays, replays_help, {{"result", "asked"}}, metrics::Number(sums.feed.replays));
  sink.Counter(replays, replays_help, {{"result", "failed"}},
               metrics::Number(sums.feed.failed_replays));
  sink.Counter("cairn_router_engine_event_gaps_total", "Times that batches were missing.", {},
               metrics::Number(sums.feed.gaps));
  sink.Counter("cairn_router_engine_restarts_total", "Engines that began their numbers again.", {},
               metrics::Number(sums.feed.restarts));
  sink.Counter("cairn_router_engine_forgotten_total",
               "Times that all that was known of an engine was forgotten.", {},
               metrics::Number(sums.feed.forgotten));
  sink.Counter("cairn_router_engine_event_junk_total", "Messages that are no batches of events.",
               {}, metrics::Number(sums.feed.junk));
}

void ExportViews(const EngineView::Numbers& view, metrics::Sink& sink) {
  const std::string events = "cairn_router_engine_events_total";
  const std::string events_help = "Events of engines by kind.";
  const auto add_event = [&](const char* kind, uint64_t value) {
    sink.Counter(events, events_help, {{"kind", kind}}, metrics::Number(value));
  };
  add_event("stored", view.stored);
  add_event("removed", view.removed);
  add_event("cleared", view.cleared);
  add_event("unknown", view.unknown);
  const std::string skipped = "cairn_router_engine_skipped_blocks_total";
  const std::string skipped_help = "Blocks in events that are in no answer, by the reason.";
  const auto add_skipped = [&](const char* reason, uint64_t value) {
    sink.Counter(skipped, skipped_help, {{"reason", reason}}, metrics::Number(value));
  };
  add_skipped("special", view.skipped.special);
  add_skipped("group", view.skipped.group);
  add_skipped("block_size", view.skipped.block_size);
  add_skipped("medium", view.skipped.medium);
  add_skipped("parent", view.skipped.parent);
  sink.Gauge("cairn_router_engine_known_blocks", "Blocks of engines whose hashes are known.", {},
             metrics::Number(view.blocks));
  sink.Counter("cairn_router_engine_evicted_blocks_total",
               "Blocks that were forgotten because an engine had too many of them.", {},
               metrics::Number(view.evicted));
}

}  // namespace

uint64_t EngineEventsConfig::engines() const {
  const auto names = static_cast<uint64_t>(std::ranges::count_if(events, IsWorkerName));
  return events.size() - names + (names > 0 ? named : 0);
}

void Register(config::Schema& schema, EngineEventsConfig& config) {
  schema.TextList(
      "engines.events", &config.events,
      "KV events of engines: URL=ENDPOINT or URL=ENDPOINT,REPLAY for each of `workers` that "
      "publishes them, such as http://10.0.0.1:8000=tcp://10.0.0.1:5557,tcp://10.0.0.1:5558. For "
      "engines that have a name, dns:http://NAME:PORT=tcp://{host}:5557,tcp://{host}:5558. The "
      "blocks of other engines are estimated.",
      {.max_length = 1024});
  schema.Integer("engines.event_engines", &config.named,
                 "Most engines with names whose events are followed. The blocks of further ones "
                 "are estimated.",
                 {.min = 1, .max = 4096, .unit = "engines"});
  schema.Integer("engines.event_blocks", &config.blocks,
                 "Most blocks of one engine that are known by its events. More than the engine has "
                 "room for in all its tiers.",
                 {.min = 1024, .max = 1u << 28, .unit = "blocks"});
}

void ExportEngineEvents(const ZmqFollower& follower, metrics::Sink& sink) {
  const Sums sums = SumOf(follower);
  ExportFeeds(sums, sink);
  ExportViews(sums.view, sink);
}

}  // namespace cairn::router
