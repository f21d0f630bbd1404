#pragma once
// Says whether and how the same-node session of a client can be used now.

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "cairn/common/clock.h"
#include "clients/cpp/src/core/transport.h"
#include "clients/cpp/src/local/local_session.h"
#include "common/concurrency/mutex.h"

namespace cairn::client::local {

// Keeps at most one same-node session, opened by the first call that could use it and again, after
// a pause, when it has failed. A same-node session serves one tenant: that of the options,
// or of the first namespace; namespaces of other tenants go over gRPC. Thread-safe.
class LocalPath {
 public:
  struct Options {
    std::string client;
    std::string tenant = {};  // The client's only one. Empty: that of the first namespace.
    Duration spin{-1};
    Duration first_pause = std::chrono::seconds(1);  // After a failure; doubles up to 30 s.
    std::shared_ptr<DeviceImporter> devices = {};    // Null: no memory of GPUs.
  };
  // `clock` must outlive it.
  LocalPath(const Options& options, const Clock* clock)
      : options_(options), clock_(clock), tenant_(options.tenant) {}
  ~LocalPath();

  // A namespace that calls will name.
  void Remember(const Digest& fingerprint, std::string_view tenant);

  // The same-node session to use for the namespace; nullptr: none. `offer`: the client's session
  // that is open now, which offers this path. A new one replaces the same-node session too. May
  // connect: a few round trips within the machine, at most until `deadline`.
  std::shared_ptr<LocalSession> Get(const SessionPtr& offer, const Digest& fingerprint,
                                    TimePoint deadline);

  // Hangs up if the node has ended the session, so that it gets back what was leased there: only
  // what is still lent keeps the connection.
  void CheckAlive();

  // UNAVAILABLE, which says why there is no same-node session.
  Status Unavailable() const;

  // Leases of the same-node session, from Match until the client's Lease is dropped.
  void Keep(std::shared_ptr<LeasePin> pin);
  // nullptr: a lease of another path, or of a session that has ended. Nodes count leases from 1
  // after each start, so the session is compared too.
  std::shared_ptr<LeasePin> Find(const LeaseInfo& lease) const;
  // False: not one of these.
  bool Drop(const LeaseInfo& lease);

  NearTransport::State GetState() const;

 private:
  // Forgets the session and its leases. Returns what must be destroyed outside the lock.
  struct Old {
    std::shared_ptr<LocalSession> session;
    std::unordered_map<uint64_t, std::shared_ptr<LeasePin>> leases;
  };
  Old Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetReason(std::string reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const Clock* const clock_;
  mutable Mutex mu_;
  std::string tenant_ ABSL_GUARDED_BY(mu_);
  std::set<Digest> namespaces_ ABSL_GUARDED_BY(mu_);  // The namespaces of tenant_.
  SessionPtr offer_ ABSL_GUARDED_BY(mu_);             // The session that session_ belongs to.
  std::shared_ptr<LocalSession> session_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<uint64_t, std::shared_ptr<LeasePin>> leases_ ABSL_GUARDED_BY(mu_);
  bool opening_ ABSL_GUARDED_BY(mu_) = false;
  TimePoint retry_at_ ABSL_GUARDED_BY(mu_) = {};
  Duration pause_ ABSL_GUARDED_BY(mu_) = {};
  std::string reason_ ABSL_GUARDED_BY(mu_) = "no session with the node yet";
  uint64_t sessions_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::client::local
