#pragma once
// How much of a prompt each other member holds, for routers that choose a node by it.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/concurrency/timers.h"
#include "services/cache/cluster/peer/holder_search.h"

namespace cairn::cache {

struct LocatedAt {
  std::string member;
  PeerMatch held;  // From the first key on.
};

struct Locations {
  // Members that hold something: those with the most blocks first, and of these the fastest.
  std::vector<LocatedAt> members = {};
  // Members of which the directory knows, and that have not answered in time, or only with an
  // error.
  uint32_t silent = 0;
};

// Finds holders through the directory, and asks them all at once, without a lease. Thread-safe.
class Locator {
 public:
  struct Options {
    size_t max_members = 16;  // Members that one call asks: those with the most waymarks.
    Duration longest = std::chrono::seconds(1);
  };
  // All outlive it; links and timers let go of their callbacks before it is destroyed.
  Locator(Options options, HolderSearch* search, PeerLinks* links, Timers* timers,
          const Clock* clock)
      : options_(options), search_(*search), links_(*links), timers_(*timers), clock_(*clock) {}

  using Done = std::function<void(Locations)>;
  // `done` runs once: when all have answered, or at `deadline` with what is known by then. Inside
  // the call, or on another thread.
  void Locate(const PeerNamespace& ns, std::span<const BlockKey> keys, uint32_t block_tokens,
              TimePoint deadline, Done done);

 private:
  class Question;

  const Options options_;
  HolderSearch& search_;
  PeerLinks& links_;
  Timers& timers_;
  const Clock& clock_;
};

}  // namespace cairn::cache
