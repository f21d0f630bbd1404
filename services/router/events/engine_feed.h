#pragma once
// The order of one engine's batches: numbers without gaps, lost ones asked for again, restarts
// noticed. If the order cannot be made sure, the view forgets. No sockets: zmq_follower has those.
//
//   Live ───┬── the next number ──────────────────────────────► view
//           ├── a number at or below the last live one: the engine has restarted: forget
//           └── a number too high, or the first after a break:
//                 hold it, ask for a replay from the last batch that is known
//                   the same batch comes first ─► same engine, the rest fills the gap; an engine
//                     that sends faster than the network drops some: ask for these again
//                   another one ─► it has restarted, or remembers no more: forget, take the rest
//                   nothing, or too late ─► forget
//
// A batch counts as the same if its number and its bytes are: batches carry the time of day.
// Without an endpoint for replays each break and each gap makes the view forget.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cairn/common/clock.h"
#include "services/router/events/engine_view.h"

namespace cairn::router {

// Not thread-safe. All calls in the order in which things happen. While `replaying()` no Live.
class EngineFeed {
 public:
  struct Options {
    bool replays = false;  // The engine has an endpoint for them.
    // A replay whose next batch does not come for so long has failed, and for some time none is
    // asked for: the engine serves them between its batches.
    Duration replay_timeout = std::chrono::seconds(2);
    Duration replay_pause = std::chrono::seconds(10);
    // An engine that is not connected for so long holds nothing.
    Duration lost_after = std::chrono::seconds(5);
  };
  struct Numbers {
    uint64_t live_batches = 0;
    uint64_t replayed_batches = 0;
    uint64_t replays = 0;         // Replays that were asked for.
    uint64_t failed_replays = 0;  // Replays that did not bring all that was missing.
    uint64_t gaps = 0;            // Batches were missing.
    uint64_t restarts = 0;        // Restarts of the engine.
    uint64_t forgotten = 0;       // Times that all was forgotten, for any of these reasons.
    uint64_t junk = 0;            // Messages that are no batches.

    Numbers& operator+=(const Numbers& other);
  };

  // `view` and `clock` must outlive it.
  EngineFeed(const Options& options, EngineView* view, const Clock* clock)
      : options_(options), view_(view), clock_(clock) {}

  void Connected();
  void Disconnected();
  // The engine published a batch with this number.
  void Live(uint64_t number, std::string_view batch);
  // The number from which a replay is to be asked for now. The replay is under way then.
  std::optional<uint64_t> TakeReplayRequest();
  bool replaying() const { return replay_ != Replay::kNone; }
  // A batch of the replay; its end.
  void Replayed(uint64_t number, std::string_view batch);
  void ReplayEnded();
  // Looks at the time. Call it every 100 ms or so. True: a replay that was under way has failed.
  bool Tick();
  // A message that has not even a number.
  void CountJunk() { ++numbers_.junk; }

  bool connected() const { return connected_; }
  // nullopt: none has come.
  std::optional<TimePoint> last_batch_at() const { return last_batch_at_; }
  // The text of the last error in a batch, for the log, once.
  std::string TakeError() { return std::exchange(error_, {}); }
  const Numbers& numbers() const { return numbers_; }

 private:
  enum class Replay : uint8_t { kNone, kWanted, kFirst, kRest };
  struct Batch {
    uint64_t number = 0;
    std::string bytes = {};
  };

  bool CanReplay() const {
    return options_.replays && connected_ && clock_->Now() >= no_replay_before_;
  }
  void FailReplay();
  // After this nothing is known.
  void Forget();
  void Accept(uint64_t number, std::string_view batch);

  const Options options_;
  EngineView* const view_;
  const Clock* const clock_;
  bool connected_ = false;
  bool left_ = true;  // The view is no member of the index.
  TimePoint disconnected_at_ = {};
  std::optional<uint64_t> next_ = {};       // nullopt: nothing is known.
  uint64_t last_hash_ = 0;                  // The hash of the batch before `next_`.
  std::optional<uint64_t> last_live_ = {};  // The last live number of this connection.
  bool unsure_ = true;  // After a break: it may be another engine, or have published something.
  Replay replay_ = Replay::kNone;
  bool progress_ = false;  // The replay has brought something.
  TimePoint replay_until_ = {};
  TimePoint no_replay_before_ = {};
  std::optional<Batch> held_ = {};  // A live batch that waits for the replay.
  std::optional<TimePoint> last_batch_at_ = {};
  std::string error_;
  Numbers numbers_;
};

}  // namespace cairn::router
