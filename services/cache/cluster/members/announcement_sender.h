#pragma once
// Brings announcements to owners: one call at a time to each.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "services/cache/cluster/directory/announcer.h"
#include "services/cache/cluster/directory/directory.h"
#include "services/cache/cluster/peer/peer_links.h"

namespace cairn::cache {

// Thread-safe. `links` lets go of its callbacks before it is destroyed.
class AnnouncementSender {
 public:
  struct Options {
    PeerCaller self;
    Duration deadline = std::chrono::seconds(2);  // Limit for a call.
    Duration pause = std::chrono::seconds(1);     // After one that failed.
  };
  AnnouncementSender(Options options, Announcer* announcer, Directory* own, PeerLinks* links,
                     const Clock* clock)
      : options_(std::move(options)),
        announcer_(*announcer),
        own_(*own),
        links_(*links),
        clock_(*clock) {}

  // The members that may be told anything, this node among them. The sender forgets what the others
  // were told: a message without an answer to one that left is not sent again.
  void SetMembers(const std::vector<std::string>& ids);
  // Sends what waits. Never waits itself.
  void Step();
  // A member says that it has everything up to this number, in answer to a question that was asked
  // when `asked_at` was the last number. If that cannot be, it is told everything again.
  void Check(const std::string& member, uint64_t announced, uint64_t asked_at);
  // The last number that a member was sent and answered; nullopt: a call is under way.
  std::optional<uint64_t> Settled(const std::string& member) const;
  // A new process has the place of this member, and knows nothing.
  void Restart(const std::string& member);
  // Members that it remembers something of.
  size_t streams() const;

  uint64_t messages() const;
  uint64_t failures() const;

 private:
  struct Stream {
    uint64_t under_way = 0;                  // The call. 0: none.
    std::optional<Announcement> unanswered;  // Sent again as it was.
    TimePoint not_before{};
  };
  void Send(const std::string& owner);
  void Sent(const std::string& owner, uint64_t call, const Status& status);
  Status ApplyHere(const Announcement& message);

  const Options options_;
  Announcer& announcer_;
  Directory& own_;
  PeerLinks& links_;
  const Clock& clock_;
  mutable Mutex mu_;
  std::map<std::string, Stream> streams_ ABSL_GUARDED_BY(mu_);  // One for each member.
  uint64_t messages_ ABSL_GUARDED_BY(mu_) = 0, failures_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::cache
