#pragma once
// The members of the cluster, as this one knows them: discovery names addresses, and who is there
// says so himself.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"
#include "common/membership/discovery.h"
#include "services/cache/cluster/peer/peer_messages.h"

namespace cairn::cache {

// Another member that answered lately.
struct LiveMember {
  PeerHello hello;      // As it said last.
  std::string address;  // Where it was found.
  TimePoint heard{};    // When it answered last.
  // The incarnations of older processes that answer with the same id.
  std::vector<uint64_t> older_incarnations = {};
  bool operator==(const LiveMember& other) const {
    return hello.caller == other.hello.caller && address == other.address;
  }
};

// An address of the view that is no member now, and why.
struct AbsentMember {
  std::string address;
  Status why;
};

// If several processes have one id, only the one with the largest (epoch, incarnation) counts.
// Thread-safe.
class MemberList {
 public:
  struct Options {
    Duration hello_every = std::chrono::seconds(10);
    Duration first_retry = std::chrono::milliseconds(500);  // Doubles up to hello_every.
    // A member that did not answer for so long is none for this node, whatever discovery says.
    Duration absent_after = std::chrono::seconds(30);
  };
  // `self`: what this process says of itself.
  MemberList(Options options, const PeerHello& self) : options_(options), self_(self) {}

  void SetView(const membership::View& view);
  // Addresses that are to be greeted now. Each waits for Heard or Failed.
  std::vector<std::string> TakeDue(TimePoint now);
  // All addresses are due within a second; those that are due earlier stay so.
  void GreetAllSoon(TimePoint now);
  // Somebody answered at this address. FAILED_PRECONDITION: it is no member of this cluster.
  Status Heard(const std::string& address, const PeerHello& hello, TimePoint now);
  // Nobody answered there. True: for another reason than the last time.
  bool Failed(const std::string& address, const Status& why, TimePoint now);
  // A process greets this one. From the process that answered at its address before, this is as
  // good as an answer. Anybody else may have written it, so the address is greeted at once, and
  // what it answers counts. FAILED_PRECONDITION: it is no member of this cluster.
  Status Greeted(const PeerHello& hello, TimePoint now);

  // Without this process, by id.
  std::vector<LiveMember> live(TimePoint now) const;
  // Grows when `live` or `replaced_by` may say something else, but for when somebody was heard and
  // for view digests. Looking is cheap, however many members there are.
  uint64_t version(TimePoint now);
  std::vector<AbsentMember> absent(TimePoint now) const;
  // A newer process answers with the id of this one, which has to keep out of the cluster: until
  // the address answers as somebody else, leaves the view, or is silent for `absent_after`.
  std::optional<PeerHello> replaced_by() const;
  // Discovery has named somebody, and every address has been asked once.
  bool asked_all() const;

 private:
  struct Place {
    TimePoint next{};  // When it is greeted.
    bool greeting = false;
    bool asked = false;
    Duration retry{0};
    TimePoint heard{};
    std::optional<PeerHello> hello;  // The process that answered last at the address.
    Status last = Errorf(StatusCode::kUnavailable, "not asked yet");
  };

  // FAILED_PRECONDITION names what does not fit.
  Status Check(const PeerHello& hello) const;
  Status Take(Place& place, const PeerHello& hello, TimePoint now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether this is a newer process with the id of this one.
  bool Replaces(const std::optional<PeerHello>& hello) const;
  void FindReplacement() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Lives(const Place& place, TimePoint now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const PeerHello self_;
  mutable Mutex mu_;
  std::map<std::string, Place> places_ ABSL_GUARDED_BY(mu_);  // By address.
  std::optional<PeerHello> replaced_by_ ABSL_GUARDED_BY(mu_);
  uint64_t version_ ABSL_GUARDED_BY(mu_) = 1;
  // No member becomes absent before.
  TimePoint next_absence_ ABSL_GUARDED_BY(mu_) = TimePoint::max();
};

}  // namespace cairn::cache
