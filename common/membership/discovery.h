#pragma once
// Discovery: which processes may belong to the cluster, and where they listen.
//
// It says who may exist, not who works: each caller finds that out by calling. So an error here
// never makes a view smaller, and a process that is not in anybody's view still serves its own
// clients.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"

namespace cairn::membership {

// A process that may belong to the cluster.
struct Member {
  std::string address = {};  // "host:port", where it listens for other members.
  // If a list of addresses does not know a field, it stays empty or 0 until the process itself says
  // it.
  std::string id = {};
  uint64_t epoch = 0;        // Grows with each start of this id.
  uint64_t incarnation = 0;  // Random for each start: tells two processes with one id apart.
  // Members with the same `host` share a machine, and those with the same `zone` share a network
  // zone. Settings, because addresses do not show it. Empty: unknown.
  std::string host = {}, zone = {};

  bool operator==(const Member&) const = default;
};

// Ordered by id and address. For each id it has only the newest process.
using View = std::vector<Member>;

// Orders `members`, and leaves one of each id that is known: the one with the largest epoch, then
// the largest incarnation. Among those without an id, one of each address stays.
View MakeView(std::vector<Member> members);

// The state of a discovery, for operators. The discovery's lock protects it.
struct DiscoveryHealth {
  bool complete = false;  // It has had at least one full answer.
  // OK: the last attempt worked. Otherwise its error, with what was asked.
  Status last = OkStatus();
  // Time of the last attempt that succeeded, on the clock of the discovery.
  TimePoint last_success{};

  // Keeps how an attempt ended. Writes one line to the log for a time without answers, however many
  // attempts fail in it.
  void Note(const Status& status, TimePoint now);
};

// Thread-safe, except that Start and Stop are called once, in this order.
class Discovery {
 public:
  // Gets each view that differs from the one before, one at a time, on any thread. Short.
  using OnView = std::function<void(const View&)>;

  virtual ~Discovery() = default;

  // Announces `self`, if this kind of discovery announces, and begins to look. The views contain
  // this process, too, when others would find it. It does not wait for an answer: places that
  // cannot be reached are tried again until Stop.
  // INVALID_ARGUMENT names the setting that can never work.
  virtual Status Start(const Member& self, OnView on_view) = 0;
  // Takes the announcement back, waiting a second at most. No callback runs afterwards.
  virtual void Stop() = 0;
  virtual DiscoveryHealth health() const = 0;
};

}  // namespace cairn::membership
