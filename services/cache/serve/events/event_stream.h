#pragma once
// The stream of a node's events in the engines' form: numbered batches, the last of which are kept
// for those who missed some. No sockets: zmq/zmq_publisher has those.
//
//   engine's Watch ─► NamespaceForm ─► batches of a topic ─► sink
//                                            └─► the last ones, for replays
//
// A stream begins with AllBlocksCleared and all blocks that are here. Everything that happens
// follows. The stream begins again, with the next numbers, if readers know blocks that are gone and
// would not be told, or if they do not know all blocks:
//
//   lagged    the node stored and moved faster than the stream was read
//   dropped   a namespace is gone with all its blocks: readers get no removal for each of them
//   asked     a reader asks for batches that are not kept, and the last beginning is not, either
//
// The stream keeps no table of blocks: the engine's events have all that is needed. Numbers count
// through all topics, so a reader of some of them sees gaps.

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/cache/serve/events/batch_encoder.h"
#include "services/cache/serve/events/namespace_form.h"
#include "services/cache/store/engine/cache_engine.h"

namespace cairn::cache {

// A message. Copies share its bytes.
struct EventBatch {
  uint64_t number = 0;
  std::shared_ptr<const std::string> topic = {};
  std::shared_ptr<const std::string> bytes = {};
};

// Not thread-safe.
class EventStream {
 public:
  // The most bytes of a batch, about.
  static constexpr size_t kBatchBytes = 64 << 10;
  // The memory of a kept batch in addition to its bytes, about.
  static constexpr size_t kBatchOverhead = 256;
  // The least time between the end of a beginning and the next one: for those that the node itself
  // needs, and for those that a reader asks for. It is at least ten times what a beginning took.
  static constexpr Duration kPause = std::chrono::seconds(1);
  static constexpr Duration kPauseAsked = std::chrono::seconds(30);

  struct Options {
    std::string topic = "kv@{node}@{model}";  // CheckTopic.
    TopicNames names = {};
    std::string tenant = "default";  // Nothing is told about blocks of other tenants.
    EventEncoding encoding = EventEncoding::kMaps;
    bool bytes = false;                 // vLLM's hashes are written as all their bytes.
    uint64_t kept_bytes = 32ull << 20;  // Limit for the batches that are kept.
  };
  struct Dependencies {
    CacheEngine* engine = nullptr;  // Outlives the stream.
    const Clock* clock = nullptr;   // The engine's.
    // Seconds since 1970.
    std::function<double()> unix_time;
  };
  using Sink = std::function<void(const EventBatch&)>;

  enum class Cause : uint8_t { kStart, kLagged, kDropped, kAsked };
  static constexpr size_t kCauses = 4;
  struct Numbers {
    uint64_t batches = 0;
    uint64_t stored = 0;  // Blocks in events of each kind.
    uint64_t removed = 0;
    std::array<uint64_t, kCauses> beginnings = {};
    uint64_t replays = 0;             // Requests for them.
    uint64_t incomplete_replays = 0;  // Those for batches that are not kept.
    uint64_t kept_batches = 0;
    uint64_t kept_bytes = 0;
    uint64_t namespaces = 0;          // Namespaces of the tenant that are published.
    uint64_t skipped_namespaces = 0;  // Others of it: their keys are not an engine's hashes.
  };

  EventStream(Options options, Dependencies dependencies, Sink sink);

  // Tells the sink some of what has happened; never waits. True: there may be more.
  bool Step();
  // Begins again for a reader that has come and cannot ask for a replay, with a pause.
  void BeginAgain() { Want(Cause::kAsked, kPause); }
  // Gives all kept batches from this number on.
  void Replay(uint64_t from, const Sink& take);
  Numbers numbers() const;

 private:
  struct Followed {
    std::optional<NamespaceForm> form = {};  // nullopt: it is not published.
    bool told = false;                       // A block of it, since the last beginning.
  };
  // The events of the next batch.
  struct Open {
    std::shared_ptr<const std::string> topic = {};
    std::vector<KvEvent> events = {};
    size_t bytes = 0;    // About.
    bool again = false;  // The last two events are of one run: removed, and stored again.
  };

  void Want(Cause cause, Duration pause);
  // False: it has to be tried again.
  bool Begin(Cause cause);
  void Handle(const CacheEvent& event);
  void Add(const NamespaceForm& form, const EventShape& shape, const BlockKey& hash);
  void Flush();
  void Publish(const std::shared_ptr<const std::string>& topic, std::span<const KvEvent> events);
  void Keep(const EventBatch& batch);
  // nullptr: nobody knows the namespace any more. Valid until the next call.
  Followed* Find(const Fingerprint& fingerprint);
  void Count(const Followed& followed, int change);
  void WarnIfShared(const Fingerprint& fingerprint, const NamespaceForm& form) const;

  const Options options_;
  const Dependencies dependencies_;
  const Sink sink_;
  std::unique_ptr<EventQueue> queue_;  // nullptr: the stream has to begin.
  absl::flat_hash_map<Fingerprint, Followed> namespaces_;
  std::set<std::string> told_topics_;  // Topics with blocks since the last beginning.
  // Why the stream has to begin, and when at the earliest.
  std::optional<Cause> wanted_ = Cause::kStart;
  TimePoint due_ = {};
  TimePoint began_at_ = {}, ended_at_ = {};  // The last beginning.
  bool beginning_ = false;                   // Its blocks are being told.
  // An event may be about a block that the beginning has told already: the block was stored between
  // the watch and the page that has it. Some readers count how often a block was stored.
  bool repeats_ = false;
  uint64_t next_ = 0;        // The number of the next batch.
  uint64_t begun_with_ = 0;  // That of the first batch of the last beginning.
  Open open_;
  std::deque<EventBatch> kept_;
  Numbers numbers_;
};

}  // namespace cairn::cache
