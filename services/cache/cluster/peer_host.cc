#include "services/cache/cluster/peer_host.h"

#include <algorithm>
#include <utility>

#include "services/cache/cluster/held_blocks.h"

namespace cairn::cache {
namespace {

constexpr Duration kLease = std::chrono::seconds(5);
constexpr Duration kSilentSession = std::chrono::seconds(60);
constexpr size_t kMostWaymarks = 64;

}  // namespace

void PeerHost::Attach(CacheEngine* engine) {
  engine_ = engine;
  blocks_ = engine->for_peers();
}

void PeerHost::Detach() {
  std::map<std::string, Session> sessions;
  {
    MutexLock lock(mu_);
    sessions.swap(sessions_);
  }
  for (const auto& [member, session] : sessions) engine_->CloseSession(session.id);
}

Status PeerHost::Check(const PeerCaller& caller) const {
  if (caller.cluster == cluster_) return OkStatus();
  return Errorf(StatusCode::kPermissionDenied, "field 'cluster': got '{}', expected '{}'",
                caller.cluster, cluster_);
}

Status PeerHost::CheckBumps(const PeerNamespace& ns) const {
  if (blocks_->BumpsDigestOf(ns.fingerprint) == ns.bumps_digest) return OkStatus();
  return Errorf(StatusCode::kFailedPrecondition,
                "namespace {}: this member knows other bumps than the caller",
                ns.fingerprint.Hex());
}

PeerHelloAnswer PeerHost::Hello(const PeerHello& hello) {
  // A stranger gets an answer, too: it shows him what does not fit.
  (void)members_.Greeted(hello, clock_.Now());
  return {.callee = self_(),
          .announced = directory_.SequenceOf(hello.caller.id, hello.caller.incarnation)};
}

Status PeerHost::Announce(const PeerCaller& caller, const Announcement& message) {
  CAIRN_RETURN_IF_ERROR(Check(caller));
  if (message.begins) (void)directory_.Open(caller.id, caller.incarnation, 0);
  return directory_.Apply(caller.id, caller.incarnation, message);
}

Result<FoundHolders> PeerHost::Find(const PeerCaller& caller,
                                    std::span<const WaymarkHash> waymarks) {
  CAIRN_RETURN_IF_ERROR(Check(caller));
  if (waymarks.empty() || waymarks.size() > kMostWaymarks) {
    return InvalidArgument("field 'waymarks': got {}, expected 1 to {}", waymarks.size(),
                           kMostWaymarks);
  }
  return FoundHolders{.holders = directory_.Find(waymarks), .young = directory_.young()};
}

Result<SessionId> PeerHost::SessionOf(const PeerCaller& caller) {
  std::optional<SessionId> old;
  Result<SessionId> found = SessionId{0};
  {
    MutexLock lock(mu_);
    Session& session = sessions_[caller.id];
    if (session.id != 0 && session.incarnation != caller.incarnation) {
      old = std::exchange(session.id, SessionId{0});
    }
    if (session.id == 0) {
      found = engine_->OpenSession("peer " + caller.id);
      if (found.ok()) {
        session.id = *found;
        session.incarnation = caller.incarnation;
      } else {
        sessions_.erase(caller.id);
      }
    }
    if (found.ok()) {
      session.used = clock_.Now();
      found = session.id;
    }
  }
  if (old) engine_->CloseSession(*old);
  return found;
}

Result<PeerMatch> PeerHost::Match(const PeerCaller& caller, const PeerNamespace& ns,
                                  std::span<const BlockKey> keys, PeerLease lease) {
  CAIRN_RETURN_IF_ERROR(Check(caller));
  CAIRN_RETURN_IF_ERROR(CheckBumps(ns));
  CAIRN_ASSIGN_OR_RETURN(const SessionId session, SessionOf(caller));
  MatchRequest request{.session = session,
                       .fingerprint = ns.fingerprint,
                       .keys = keys,
                       .lease_ttl = kLease,
                       .lease = lease == PeerLease::kTake,
                       .trace = ""};
  Result<MatchResult> result = engine_->Match(request);
  if (!result.ok() && result.status().code() == StatusCode::kResourceExhausted) {
    request.lease = false;
    result = engine_->Match(request);
  }
  CAIRN_RETURN_IF_ERROR(result.status());
  // A bump may have come meanwhile: these blocks would be newer than the caller's bumps.
  CAIRN_RETURN_IF_ERROR(CheckBumps(ns));
  return ToPeerMatch(*result);
}

Result<std::unique_ptr<PeerHost::Read>> PeerHost::BeginRead(const PeerCaller& caller,
                                                            const PeerNamespace& ns,
                                                            const BlockKey& key,
                                                            std::vector<std::string>* named) {
  CAIRN_RETURN_IF_ERROR(Check(caller));
  CAIRN_RETURN_IF_ERROR(CheckBumps(ns));
  const WaymarkHash block = HashForWaymark(ns.fingerprint, key);
  if (!takers_.Begin(block, caller.id, named)) {
    busy_.fetch_add(1, std::memory_order_relaxed);
    return std::unique_ptr<Read>();
  }
  std::unique_ptr<Read> read(new Read(this, block, caller.id));
  CAIRN_ASSIGN_OR_RETURN(read->read_, blocks_->ReadStored(ns.fingerprint, key));
  CAIRN_RETURN_IF_ERROR(CheckBumps(ns));  // As in Match.
  return read;
}

Result<BumpPage> PeerHost::ExchangeBumps(const PeerCaller& caller, const BumpPage& page) {
  CAIRN_RETURN_IF_ERROR(Check(caller));
  if (page.bumps.size() > BumpPage::kMost) {
    return InvalidArgument("field 'bumps': got {}, expected at most {}", page.bumps.size(),
                           BumpPage::kMost);
  }
  CAIRN_RETURN_IF_ERROR(blocks_->TakeOverBumps(page.bumps).status());
  return blocks_->Bumps(page.next, BumpPage::kMost);
}

void PeerHost::Tick() {
  std::vector<SessionId> silent;
  {
    MutexLock lock(mu_);
    const TimePoint now = clock_.Now();
    for (auto it = sessions_.begin(); it != sessions_.end();) {
      const auto at = it++;
      if (now < at->second.used + kSilentSession) continue;
      silent.push_back(at->second.id);
      sessions_.erase(at);
    }
  }
  for (const SessionId session : silent) engine_->CloseSession(session);
}

}  // namespace cairn::cache
