#pragma once
// Says whether and how the same-node session of a client can be used now.

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "cairn/client/connect.h"
#include "clients/cpp/src/local/local_session.h"
#include "common/concurrency/mutex.h"

namespace cairn::client::local {

// What a node says when it opens a session. Immutable.
struct Offer {
  std::string session;  // The gRPC session's id.
  std::string socket;   // Empty: it has no same-node sessions.
  std::string token;
  uint64_t node_epoch = 0;
};

// Keeps at most one same-node session, opened by the first call that could use it and again, after
// a pause, when it has failed. A same-node session serves one tenant: that of the first namespace;
// namespaces of other tenants go over gRPC. Thread-safe.
class LocalPath {
 public:
  struct Options {
    PathChoice choice = PathChoice::kAuto;
    std::string client;
    Duration spin{-1};
    Duration first_pause = std::chrono::seconds(1);  // After a failure; doubles up to 30 s.
  };
  explicit LocalPath(const Options& options) : options_(options) {}
  ~LocalPath();

  // A namespace that calls will name.
  void Remember(const Digest& fingerprint, std::string_view tenant);

  // The session to use for the namespace; nullptr: gRPC. `offer`: of the gRPC session that is open
  // now; each new one replaces the same-node session, too. May connect: a few round trips within
  // the machine, at most until `deadline`.
  std::shared_ptr<LocalSession> Get(const std::shared_ptr<const Offer>& offer,
                                    const Digest& fingerprint, TimePoint deadline);

  // Hangs up if the node has ended the session, so that it gets back what was leased there: only
  // what is still lent keeps the connection.
  void CheckAlive();

  // True if a call that failed in this way over the same-node session is made again over gRPC.
  static bool FallsBack(StatusCode code);
  // UNAVAILABLE, saying why there is no same-node session: for PathChoice::kLocal.
  Status Unavailable() const;
  bool only_local() const { return options_.choice == PathChoice::kLocal; }

  // Leases of the same-node session, from Match until the client's Lease is dropped.
  void Keep(std::shared_ptr<LeasePin> pin);
  // nullptr: a lease of gRPC, or of a session that has ended. `session`: as in LeaseInfo; nodes
  // count leases from 1 after each start.
  std::shared_ptr<LeasePin> Find(const std::string& session, uint64_t lease) const;
  // False: not one of these.
  bool Drop(const std::string& session, uint64_t lease);

  struct State {
    bool open = false;
    std::string reason;  // Why not.
    uint64_t sessions = 0;
  };
  State GetState() const;

 private:
  // Forgets the session and its leases. Returns what must be destroyed outside the lock.
  struct Old {
    std::shared_ptr<LocalSession> session;
    std::unordered_map<uint64_t, std::shared_ptr<LeasePin>> leases;
  };
  Old Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetReason(std::string reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  mutable Mutex mu_;
  std::string tenant_ ABSL_GUARDED_BY(mu_);
  std::set<Digest> namespaces_ ABSL_GUARDED_BY(mu_);  // Of tenant_.
  std::shared_ptr<const Offer> offer_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<LocalSession> session_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<uint64_t, std::shared_ptr<LeasePin>> leases_ ABSL_GUARDED_BY(mu_);
  bool opening_ ABSL_GUARDED_BY(mu_) = false;
  TimePoint retry_at_ ABSL_GUARDED_BY(mu_) = {};
  Duration pause_ ABSL_GUARDED_BY(mu_) = {};
  std::string reason_ ABSL_GUARDED_BY(mu_) = "no session with the node yet";
  uint64_t sessions_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::client::local
