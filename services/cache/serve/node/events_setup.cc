#include "services/cache/serve/node/events_setup.h"

#include <algorithm>

#include "common/log/log.h"
#include "services/cache/serve/node/events_config.h"

namespace cairn::cache {

Result<std::unique_ptr<ZmqPublisher>> StartEvents(const NodeConfig& config,
                                                  const std::string& node_id, CacheEngine* engine,
                                                  const Clock* clock) {
  const EventsConfig& events = config.events;
  if (!events.enabled()) return std::unique_ptr<ZmqPublisher>();
  ZmqPublisher::Options options;
  CAIRN_ASSIGN_OR_RETURN(const net::ListenAddress address,
                         ParseEventsEndpoint(events.zmq, "events.zmq"));
  options.endpoint = events.connect ? events.zmq : BindEndpoint(address);
  options.connect = events.connect;
  if (!events.zmq_replay.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const net::ListenAddress replay,
                           ParseEventsEndpoint(events.zmq_replay, "events.zmq_replay"));
    options.replay_endpoint = BindEndpoint(replay);
  }
  const uint64_t half = events.memory / 2;
  options.most_waiting = static_cast<int>(std::max<uint64_t>(1, half / EventStream::kBatchBytes));
  options.stream = {
      .topic = events.topic,
      .names = {.node = node_id, .host = config.cluster.host},
      .tenant = events.tenant,
      .encoding = events.encoding == "maps" ? EventEncoding::kMaps : EventEncoding::kArrays,
      .bytes = events.hashes == "bytes",
      .kept_bytes = half};
  CAIRN_ASSIGN_OR_RETURN(auto publisher, ZmqPublisher::Start(options, engine, clock));
  log::Info("publishing_events", {{"endpoint", options.endpoint},
                                  {"replay", options.replay_endpoint},
                                  {"tenant", events.tenant}});
  return publisher;
}

void ExportEvents(const ZmqPublisher* publisher, metrics::Registry* registry) {
  registry->AddCollector([publisher](metrics::Sink& sink) {
    using metrics::Number;
    const ZmqPublisher::Stats stats = publisher->stats();
    const EventStream::Numbers& stream = stats.stream;
    sink.Gauge("cairn_zmq_readers", "Connections to events.zmq.", {}, Number(stats.readers));
    sink.Counter("cairn_zmq_batches_total", "Batches that were published.", {},
                 Number(stream.batches));
    const auto blocks = [&](const char* event, uint64_t count) {
      sink.Counter("cairn_zmq_blocks_total", "Blocks in published events, by what happened.",
                   {{"event", event}}, Number(count));
    };
    blocks("stored", stream.stored);
    blocks("removed", stream.removed);
    sink.Counter("cairn_zmq_dropped_batches_total",
                 "Batches that at least one reader did not get, because it was too slow.", {},
                 Number(stats.dropped_batches));
    const auto begun = [&](const char* cause, EventStream::Cause index) {
      sink.Counter("cairn_zmq_beginnings_total",
                   "Times that the stream began again with all blocks, by why.", {{"cause", cause}},
                   Number(stream.beginnings[static_cast<size_t>(index)]));
    };
    begun("start", EventStream::Cause::kStart);
    begun("lagged", EventStream::Cause::kLagged);
    begun("dropped", EventStream::Cause::kDropped);
    begun("asked", EventStream::Cause::kAsked);
    const auto replays = [&](const char* outcome, uint64_t count) {
      sink.Counter("cairn_zmq_replays_total",
                   "Replays that readers asked for. incomplete: for batches that are not kept.",
                   {{"outcome", outcome}}, Number(count));
    };
    replays("complete", stream.replays - stream.incomplete_replays);
    replays("incomplete", stream.incomplete_replays);
    sink.Counter("cairn_zmq_bad_requests_total", "Messages at events.zmq_replay that ask for none.",
                 {}, Number(stats.bad_requests));
    const auto namespaces = [&](const char* condition, uint64_t count) {
      sink.Gauge("cairn_zmq_namespaces",
                 "Namespaces of the tenant. skipped: their keys are no engine's own hashes.",
                 {{"condition", condition}}, Number(count));
    };
    namespaces("published", stream.namespaces);
    namespaces("skipped", stream.skipped_namespaces);
    sink.Gauge("cairn_zmq_kept_batches", "Batches that are kept for replays.", {},
               Number(stream.kept_batches));
    sink.Gauge("cairn_zmq_kept_bytes", "The memory of these batches.", {},
               Number(stream.kept_bytes));
  });
}

}  // namespace cairn::cache
