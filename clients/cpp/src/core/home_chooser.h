#pragma once
// Which of several nodes a client uses: its home.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cairn/common/clock.h"
#include "clients/cpp/src/core/node_client.h"

namespace cairn::client {

// Decides only: its owner makes connections, reports what it sees of them, and asks where calls go.
// ConnectOptions has the rule in words.
//
//              session opens
//   untried ───────────────────► open
//      │   ▲                      │ ▲
//      │   └─ chosen when its ─┐  │ │ session opens again
//      │      pause is over    │  ▼ │
//      └──────────────────────► lost       no session in time, session ended, breaker open, drains
//
//   home    the address that calls use. If it is lost: the most preferred one that is not.
//   trial   an address that is preferred to the home, or may be: a client with a host or a zone
//           learns where a node is only in a session. The owner keeps a session with it. It becomes
//           the home when it has been open for Options::steady. One that is nearer than the home
//           and that never failed becomes the home at once.
//
// One thread at a time.
class HomeChooser {
 public:
  struct Options {
    std::string key = {};              // The key of the order among equals.
    std::string host = {}, zone = {};  // This client's. Empty: unknown.
    Duration steady = std::chrono::seconds(30);
    Duration trial = std::chrono::seconds(5);  // For a trial's session to open.
    // Before a lost address is tried again. Doubles with each loss that follows soon.
    Duration first_pause = std::chrono::milliseconds(500);
    Duration max_pause = std::chrono::seconds(30);
  };
  explicit HomeChooser(Options options) : options_(std::move(options)) {}

  // The addresses that there are. One that is missing is forgotten, except for a home that is not
  // lost.
  void SetAddresses(const std::vector<std::string>& addresses);
  bool empty() const { return candidates_.empty(); }

  // The owner's finding about an address that it has a client for.
  void Saw(const std::string& address, NodeCondition condition, TimePoint now);
  // The answer of the node at the address about itself.
  void Told(const std::string& address, const NodePlace& place);
  // The owner has closed its client for the address.
  void Closed(const std::string& address);

  // The address for calls. Empty if there are no addresses. If all are lost, the last one stays
  // until another one may be tried.
  const std::string& Home(TimePoint now);
  // Replaces a home that works by the trial, if that has earned it.
  void Improve(TimePoint now);
  // The address to keep a session with besides the home's.
  std::optional<std::string> Trial(TimePoint now);
  // The address for another attempt of a call that failed at those in `tried`.
  std::optional<std::string> Next(const std::vector<std::string>& tried, TimePoint now) const;
  // Whether there would be one. Does not look at all of them.
  bool HasNext(const std::vector<std::string>& tried, TimePoint now) const;

  // Moves from one address to another.
  uint64_t changes() const { return changes_; }

 private:
  struct Candidate {
    uint64_t order = 0;           // Among equals, the smaller is preferred.
    bool is_local = false;        // The address shows that it is on this machine.
    std::optional<int> distance;  // 0: same host, 1: same zone, 2: elsewhere. nullopt: untold.
    bool lost = false;
    bool has_failed = false;  // Since it is known.
    std::optional<TimePoint> open_since = {};
    TimePoint retry_at = {};  // While it is lost.
    Duration pause{0};
  };
  using Candidates = std::map<std::string, Candidate>;
  using Rank = std::pair<int, uint64_t>;  // The smaller is preferred.

  using Tried = std::vector<std::string>;

  static bool MayBeNext(const Candidates::value_type& candidate, const Tried& tried, TimePoint now);
  static Rank RankOf(const Candidate& candidate);
  // As good as it may turn out to be.
  Rank HopeOf(const Candidate& candidate) const;
  void Lose(Candidate& candidate, TimePoint now) const;
  void MoveTo(Candidates::value_type& candidate);
  // May replace the home, which works.
  bool MayTakeOver(const Candidate& candidate, const Candidate& home, TimePoint now) const;

  const Options options_;
  Candidates candidates_;
  std::string home_;  // Empty: none yet.
  std::string trial_;
  TimePoint trial_began_ = {};
  uint64_t changes_ = 0;
};

}  // namespace cairn::client
