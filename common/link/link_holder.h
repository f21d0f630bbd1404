#pragma once
// Gives bytes of this process' device to readers, which asked for them by calls (protocol/link).

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/link/link_reader.h"

namespace cairn::link {

// Thread-safe. Its callbacks keep it alive. No call waits for a device or a peer.
class LinkHolder : public std::enable_shared_from_this<LinkHolder> {
 public:
  // Whether `peer` may have the source bytes of `plan`, which lie in memories of this process. The
  // result keeps these bytes as they are until they are sent. An error says that nothing was
  // begun: INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED or RESOURCE_EXHAUSTED. Short. The readers
  // of other tenants' bytes are refused here, and nowhere else.
  using Grant =
      std::function<Result<std::shared_ptr<void>>(const std::string& peer, const Plan& plan)>;

  // All that is named must outlive this object and all links of the table. `history`: not that of a
  // reader.
  LinkHolder(LinkOptions options, LinkDependencies dependencies, Grant grant, PeerHistory* history);

  // `peer`: who calls, as the transport knows it. Errors: INVALID_ARGUMENT, PERMISSION_DENIED: the
  // request is wrong, or the peer is on a host where bytes must not go. FAILED_PRECONDITION: an old
  // epoch. UNAVAILABLE, RESOURCE_EXHAUSTED: not now. A link of the peer from before ends.
  Result<OpenAnswer> Open(const std::string& peer, const OpenRequest& request);
  // OK: it begins. FAILED_PRECONDITION: there is no link of this epoch, or an old sequence number.
  // Others as Grant's. Nothing has begun after an error.
  Status Move(const std::string& peer, const MoveRequest& request);
  // `done` runs once when the link of this epoch is gone, perhaps inside the call: OK. ABORTED: its
  // communicator did not end. It takes no longer than the deadlines of ending a link.
  void Close(const std::string& peer, uint64_t epoch, std::function<void(Status)> done);
  // Opens no more links. The table ends those that there are.
  void Stop();

 private:
  struct Peer {
    std::shared_ptr<Link> link;
    uint64_t epoch = 0;
    uint64_t sequence = 0;
    std::vector<MemorySize> own, others;  // `others`: the reader's.
  };
  using Key = std::pair<std::string, uint64_t>;  // Peer and epoch.
  using Waiters = std::vector<std::function<void(Status)>>;

  void Ending(const std::string& name, uint64_t epoch, const Status& why);
  void Ended(const std::string& name, uint64_t epoch, bool abandoned);
  Result<link::Move> ToMove(const Plan& plan, Way way, const std::vector<MemorySize>& own,
                            const std::vector<MemorySize>& others) const;

  const LinkOptions options_;
  const LinkDependencies dependencies_;
  const Grant grant_;
  PeerHistory& history_;
  Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Peer> peers_ ABSL_GUARDED_BY(mu_);
  std::map<Key, Waiters> closing_ ABSL_GUARDED_BY(mu_);  // Links that are not gone, and who waits.
  std::set<Key> abandoned_ ABSL_GUARDED_BY(mu_);         // As many as the table lets there be.
};

}  // namespace cairn::link
