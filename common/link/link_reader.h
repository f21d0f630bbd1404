#pragma once
// Brings bytes from the devices of other processes to the device of this one.
//
//   Fetch ─► the peer's link, if there is none a new one: an id, Open, both join
//         ─► waits its turn ─► Move at the holder ─► receive ─► done
//
// One move at a time on a link, each with a deadline of its own. Whatever goes wrong, `done` gets
// an error by then, and the caller takes its other way (gRPC). A link that broke is aborted in the
// background, and its peer is left alone for a while.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/link/calls.h"
#include "common/link/link_table.h"
#include "common/link/memories.h"
#include "common/link/peer_history.h"

namespace cairn::link {

// The objects that reader and holder need. All outlive the links.
struct LinkDependencies {
  CommunicatorMaker* maker = nullptr;
  const Memories* memories = nullptr;
  LinkTable* table = nullptr;
  Link::Dependencies link = {};
  // A reader tells why a link broke. Short.
  std::function<void(const std::string& peer, const Status& why)> broke = [](const std::string&,
                                                                             const Status&) {};
};

struct LinkOptions {
  Link::Options link = {};
  // Names the machine, with its network: processes with the same one reach each other on loopback.
  std::string host = {};
  // Bytes may go between hosts though nothing encrypts them.
  bool trusted_network = false;
  bool puts = true;
  // Moves that wait for one link; beyond that they are refused.
  size_t most_waiting = 64;
  // A holder that does not say whether its communicator is gone may still put bytes. So long they
  // stay kept. It begins no put after the deadline of the move.
  Duration settling = std::chrono::seconds(60);
};

// Whether the library refused a call. Errors of peers and deadlines have other codes.
inline bool IsLibraryError(const Status& status) { return status.code() == StatusCode::kInternal; }
// Whether bytes may go to a process there. PERMISSION_DENIED: it is on another host, and the
// network is not named trusted.
Status CheckHost(const LinkOptions& options, const std::string& host);
// The memories of this process that can become windows.
std::vector<MemorySize> WindowSizes(const LinkOptions& options, const Memories& memories);
std::vector<CommunicatorMaker::Window> MakeWindows(const Memories& memories,
                                                   const std::vector<MemorySize>& own,
                                                   const std::vector<MemorySize>& others);

// Thread-safe. Its callbacks keep it alive.
class LinkReader : public std::enable_shared_from_this<LinkReader> {
 public:
  using Done = std::function<void(Status)>;

  // All that is named must outlive this object and all links of the table.
  LinkReader(LinkOptions options, LinkDependencies dependencies, LinkCalls* calls,
             PeerHistory* history);

  // Brings the bytes of `plan` from `peer`, whose memories it names, into this process' memories.
  // `keep` keeps the target bytes reserved: it is let go of when nothing can write there any more,
  // which may be long after `done`, or never. `done` runs once, by `deadline`, on any thread,
  // perhaps inside the call. OK: all bytes are there. INVALID_ARGUMENT, NOT_FOUND: the plan is
  // wrong. Any other error: get the bytes in another way. Nothing of this verifies the bytes.
  void Fetch(const std::string& peer, Plan plan, std::shared_ptr<void> keep, TimePoint deadline,
             Done done);
  // Makes a link to `peer`, unless there is one or the peer is left alone: so that no fetch has to
  // wait until both have joined. Waits for nothing.
  void Prepare(const std::string& peer);
  // There is a link that both have joined.
  bool Ready(const std::string& peer) const;
  // Takes no more fetches; those that wait end with UNAVAILABLE. The table ends the links.
  void Stop();

 private:
  struct Waiting {
    Plan plan;
    std::shared_ptr<void> keep;
    TimePoint deadline;
    Done done;
    Timers::Id timer = 0;  // Guarded by the reader's mutex, as is `over`.
    bool over = false;     // `done` has run, or runs now.
  };
  using WaitingPtr = std::shared_ptr<Waiting>;
  struct Peer {
    std::shared_ptr<Link> link;  // Never nullptr.
    uint64_t epoch = 0;
    uint64_t sequence = 0;
    std::vector<MemorySize> own, others;  // The windows, if any.
    std::deque<WaitingPtr> waiting;
    WaitingPtr asked;           // The holder is asked for it, or moves it.
    std::shared_ptr<void> put;  // The owner that keeps its bytes, if the holder puts them.
  };

  // Makes a link to a peer that has none, for a fetch or, nullptr, for later ones. Returns its
  // epoch.
  Result<uint64_t> Open(const std::string& name, const WaitingPtr& waiting);
  void Ask(const std::string& name, uint64_t epoch, const UniqueId& id);
  void Opened(const std::string& name, uint64_t epoch, const UniqueId& id, const OpenRequest& said,
              const Result<OpenAnswer>& answer);
  // Asks the holder for the first fetch that waits, if the link is free.
  void Next(const std::string& name, uint64_t epoch);
  void Answered(const std::string& name, uint64_t epoch, const WaitingPtr& waiting, Way way,
                const Status& answer);
  void Ending(const std::string& name, uint64_t epoch, const Status& why);
  // Tells the holder that the link is over. `keep`: bytes that it may still write to.
  void Close(const std::string& name, uint64_t epoch, std::shared_ptr<void> keep);
  // Runs `done` unless it has run.
  void Complete(const WaitingPtr& waiting, const Status& status);
  void Late(const std::string& name, const WaitingPtr& waiting);
  std::shared_ptr<Link> LinkOf(const std::string& name, uint64_t epoch);
  Result<Move> ToMove(const Plan& plan, Way way) const;

  const LinkOptions options_;
  const LinkDependencies dependencies_;
  LinkCalls& calls_;
  PeerHistory& history_;
  mutable Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Peer> peers_ ABSL_GUARDED_BY(mu_);  // Those with a link that does not end.
  // Bytes of puts whose holder did not end its communicator. Few: such holders open no more links.
  std::vector<std::shared_ptr<void>> lost_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::link
